"""logboom: commands ordered by one Raft log, stored and applied in many partitions, exactly once."""

from logboom.client import Client
from logboom.client.reads import LogBatch
from logboom.commands import Add, Cas, Delete, Put
from logboom.errors import LogboomError
from logboom.records import RecordBlock
from logboom.sync_client import SyncClient
from logboom.types import BarrierResult, Receipt, Receipts, Record, Status, Watermark

__all__ = [
    "Add",
    "BarrierResult",
    "Cas",
    "Client",
    "Delete",
    "LogBatch",
    "LogboomError",
    "Put",
    "Receipt",
    "Receipts",
    "Record",
    "RecordBlock",
    "Status",
    "SyncClient",
    "Watermark",
]
