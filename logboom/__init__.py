"""logboom: commands ordered by one Raft log, stored and applied in many partitions, exactly once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logboom.client import Client
    from logboom.client.log_batches import Descriptor, LogBatch, LogMetadata
    from logboom.client.sender import Sender
    from logboom.commands import Add, Cas, Compare, Delete, DeletePrefix, DeleteRange, Put, Txn
    from logboom.errors import LogboomError
    from logboom.origins import Origin
    from logboom.records import RecordBlock
    from logboom.sync_client import SyncClient
    from logboom.sync_sender import SyncSender
    from logboom.types import (
        BarrierProgress,
        BarrierResult,
        Receipt,
        Receipts,
        Record,
        Status,
        Token,
        Watermark,
        WatermarkUpdate,
    )

__all__ = [
    "Add",
    "BarrierProgress",
    "BarrierResult",
    "Cas",
    "Client",
    "Compare",
    "Delete",
    "DeletePrefix",
    "DeleteRange",
    "Descriptor",
    "LogBatch",
    "LogMetadata",
    "LogboomError",
    "Origin",
    "Put",
    "Receipt",
    "Receipts",
    "Record",
    "RecordBlock",
    "Sender",
    "Status",
    "SyncClient",
    "SyncSender",
    "Token",
    "Txn",
    "Watermark",
    "WatermarkUpdate",
]

_HOMES = {
    "Add": "logboom.commands",
    "BarrierProgress": "logboom.types",
    "BarrierResult": "logboom.types",
    "Cas": "logboom.commands",
    "Client": "logboom.client",
    "Compare": "logboom.commands",
    "Delete": "logboom.commands",
    "DeletePrefix": "logboom.commands",
    "DeleteRange": "logboom.commands",
    "Descriptor": "logboom.client.log_batches",
    "LogBatch": "logboom.client.log_batches",
    "LogMetadata": "logboom.client.log_batches",
    "LogboomError": "logboom.errors",
    "Origin": "logboom.origins",
    "Put": "logboom.commands",
    "Receipt": "logboom.types",
    "Receipts": "logboom.types",
    "Record": "logboom.types",
    "RecordBlock": "logboom.records",
    "Sender": "logboom.client.sender",
    "Status": "logboom.types",
    "SyncClient": "logboom.sync_client",
    "SyncSender": "logboom.sync_sender",
    "Token": "logboom.types",
    "Txn": "logboom.commands",
    "Watermark": "logboom.types",
    "WatermarkUpdate": "logboom.types",
}
"""Loaded when first asked for (PEP 562): a node wants the vocabulary without the client."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
