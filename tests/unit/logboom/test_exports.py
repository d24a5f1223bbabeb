"""What `import logboom` gives, and what it does not drag in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import logboom
from logboom import errors

PUBLIC = {
    "Add", "BarrierProgress", "BarrierResult", "Cas", "Client", "Compare", "Delete", "DeletePrefix", "DeleteRange",
    "Descriptor", "LogBatch", "LogMetadata", "LogboomError", "Origin", "Put", "Receipt", "Receipts", "Record",
    "RecordBlock", "Sender", "Status", "SyncClient", "SyncSender", "Token", "Txn", "Watermark", "WatermarkUpdate",
}  # fmt: skip


def test_all_is_complete_and_sorted() -> None:
    assert set(logboom.__all__) == PUBLIC
    assert list(logboom.__all__) == sorted(logboom.__all__)
    for name in logboom.__all__:
        assert getattr(logboom, name).__doc__


def test_importing_is_light() -> None:
    script = "import logboom, sys; print(' '.join({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyarrow", "pyspark", "rich", "click", "cryptography", "structlog", "server", "lmdb"} & set(loaded)


def test_help_does_not_load_the_client() -> None:
    script = "import sys; from logboom.cli import cli; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"rich", "pyarrow", "logboom.testing", "cryptography"} & set(loaded)


def test_every_error_is_raised_somewhere_or_says_that_it_is_reserved() -> None:
    """What is in the tree, in docs/protocol.md, and never comes is caught by people for nothing."""
    root = Path(logboom.__file__).parents[1]
    folders = ("logboom", "raftlog", "partitions", "dispatcher", "snapshots", "server")
    modules = [path for folder in folders for path in (root / folder).rglob("*.py") if path != Path(errors.__file__)]
    text = "\n".join(path.read_text() for path in modules)
    for kind in errors.BY_CODE.values():
        raised = re.search(rf"\b{kind.__name__}(\.of)?\(|\"{kind.code}\"", text) is not None
        reserved = (kind.__doc__ or "").startswith("Reserved: nothing raises it")
        assert raised != reserved or kind is errors.LogboomError, kind.__name__


def test_types_are_shipped() -> None:
    assert (Path(logboom.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("kind", list(errors.BY_CODE.values()), ids=lambda kind: kind.__name__)
def test_every_error_is_in_the_tree_of_the_docstring(kind) -> None:
    assert kind is errors.LogboomError or f" {kind.__name__}" in (errors.__doc__ or "")
    assert kind.__doc__
    assert kind.outcome in ("not_applied", "unknown", "applied")


def test_the_vocabulary_comes_without_the_client() -> None:
    script = "import logboom.types, logboom.errors, sys; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "logboom.client", "logboom.records"} & set(loaded)


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="'logboom' has no attribute 'Clent'"):
        _ = logboom.Clent  # type: ignore[attr-defined]
    assert set(logboom.__all__) <= set(dir(logboom))
