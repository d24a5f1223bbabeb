"""The state of ``kv`` as layers: changes in memory above entries that are sorted."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

Layer = dict[bytes, bytes | None]
"""Newer values by key; None: the key is gone."""


def merged(
    below: Iterable[tuple[bytes, bytes]],
    changes: Mapping[bytes, bytes | None],
    *,
    start: bytes = b"",
    end: bytes | None = None,
) -> Generator[tuple[bytes, bytes], None, None]:
    """Entries from ``below``, which begin at ``start``, with ``changes``, ascending, up to ``end``, exclusive."""
    keys = iter(sorted(key for key in changes if key >= start and (end is None or key < end)))
    changed = next(keys, None)
    for key, raw in below:
        if end is not None and key >= end:
            break
        while changed is not None and changed < key:
            yield from _present(changed, changes)
            changed = next(keys, None)
        if changed == key:
            yield from _present(key, changes)
            changed = next(keys, None)
        else:
            yield key, raw
    while changed is not None:
        yield from _present(changed, changes)
        changed = next(keys, None)


def _present(key: bytes, changes: Mapping[bytes, bytes | None]) -> Iterable[tuple[bytes, bytes]]:
    raw = changes[key]
    return () if raw is None else ((key, raw),)
