"""Filters that a query has anyway, told to the reader: what cannot match is not read. Exact or not at all.

Every filter is either applied to the last row here, or left with Spark; what only narrows is both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource as spark

from logboom.client.reads import LogBatch
from logboom.spark.options import EPOCH, ReadOptions

LOWEST: Final = -(1 << 63)
HIGHEST: Final = (1 << 63) - 1
NEVER_NULL: Final = frozenset({"partition", "offset", "global_offset", "timestamp"})


@dataclass(frozen=True, slots=True)
class Span:
    """Whole numbers from ``low`` to ``high``, both inclusive."""

    low: int = LOWEST
    high: int = HIGHEST

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high

    def __and__(self, other: Span) -> Span:
        return Span(max(self.low, other.low), min(self.high, other.high))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What rows have to be like."""

    partition: Span = Span()
    partitions: frozenset[int] | None = None
    offset: Span = Span()
    global_offset: Span = Span()
    timestamp: Span = Span()
    """Microseconds since 1970."""
    keyed: bool = False
    """Rows without a key do not match."""
    key_from: bytes = b""
    key_before: bytes | None = None
    """Exclusive."""
    keys: frozenset[bytes] | None = None

    @classmethod
    def of(cls, options: ReadOptions) -> Self:
        """What the options ask for."""
        high = HIGHEST if options.end_global is None else options.end_global
        return cls(global_offset=Span(options.start_global, high))

    def has_partition(self, partition_id: int) -> bool:
        """Some of its rows may match."""
        return partition_id in self.partition and (self.partitions is None or partition_id in self.partitions)

    def has_batch(self, batch: LogBatch) -> bool:
        """As far as all rows of a batch are alike."""
        return batch.global_index in self.global_offset and batch.timestamp_ms * 1000 in self.timestamp

    @property
    def about_keys(self) -> bool:
        """Rows have to be looked at one by one."""
        return self.keyed or bool(self.key_from) or self.key_before is not None or self.keys is not None

    def rows_of(self, keys: Any) -> Any:
        """Of a column of keys, which rows match."""
        fits = pc.is_valid(keys)
        if self.key_from:
            fits = pc.and_kleene(fits, pc.greater_equal(keys, pa.scalar(self.key_from, pa.binary())))
        if self.key_before is not None:
            fits = pc.and_kleene(fits, pc.less(keys, pa.scalar(self.key_before, pa.binary())))
        if self.keys is not None:
            fits = pc.and_kleene(fits, pc.is_in(keys, value_set=pa.array(sorted(self.keys), pa.binary())))
        return pc.fill_null(fits, fill_value=False)

    def none_of(self, options: ReadOptions) -> bool:
        """Nothing can match: no partition has to be asked."""
        spans = [self.partition, self.global_offset]
        spans += [self.offset, self.timestamp] if options.view == "log" else []
        empty_keys = self.key_before is not None and self.key_before <= self.key_from
        return any(s.low > s.high for s in spans) or self.keys == frozenset() or empty_keys


def push(bounds: Bounds, filters: Iterable[Any], *, view: str) -> tuple[Bounds, list[Any]]:
    """Narrower bounds, and the filters that Spark still has to apply."""
    left = []
    for each in filters:
        narrower, exact = _narrow(bounds, each, view)
        bounds = narrower
        if not exact:
            left.append(each)
    return bounds, left


def _narrow(bounds: Bounds, given: Any, view: str) -> tuple[Bounds, bool]:
    path: Sequence[str] = getattr(given, "attribute", ())
    column = str(path[0]) if len(path) == 1 else ""
    if isinstance(given, spark.IsNotNull):
        if column == "key":
            return replace(bounds, keyed=True), True
        return bounds, column in NEVER_NULL
    value = getattr(given, "value", None)
    if column == "key":
        return _by_key(bounds, given, value)
    if column not in NEVER_NULL or (view == "state" and column != "partition"):
        # The index that a state is at is not known before it is read.
        return bounds, False
    return _by_number(bounds, column, given, value)


def _by_number(bounds: Bounds, column: str, given: Any, value: Any) -> tuple[Bounds, bool]:
    if isinstance(given, spark.In):
        return _one_of(bounds, column, value)
    number = _number(column, value)
    if number is None:
        return bounds, False
    spans: Mapping[type, Span] = {
        spark.EqualTo: Span(number, number),
        spark.EqualNullSafe: Span(number, number),
        spark.GreaterThan: Span(low=number + 1),
        spark.GreaterThanOrEqual: Span(low=number),
        spark.LessThan: Span(high=number - 1),
        spark.LessThanOrEqual: Span(high=number),
    }
    span = spans.get(type(given))
    if span is None:
        return bounds, False
    return replace(bounds, **{column: getattr(bounds, column) & span}), True


def _one_of(bounds: Bounds, column: str, values: Any) -> tuple[Bounds, bool]:
    numbers = [_number(column, v) for v in values]
    known = [n for n in numbers if n is not None]
    if len(known) != len(numbers) or not known:
        return bounds, False
    if column == "partition":
        chosen = frozenset(known)
        return replace(bounds, partitions=chosen if bounds.partitions is None else bounds.partitions & chosen), True
    span = Span(min(known), max(known))  # narrower; the gaps are Spark's
    return replace(bounds, **{column: getattr(bounds, column) & span}), False


def _by_key(bounds: Bounds, given: Any, value: Any) -> tuple[Bounds, bool]:
    values = value if isinstance(given, spark.In) else [value]
    if not values or not all(isinstance(v, bytes | bytearray) for v in values):
        return bounds, False
    keys = [bytes(v) for v in values]
    first, after = keys[0], keys[0] + b"\x00"  # the key that comes next
    if isinstance(given, spark.EqualTo | spark.EqualNullSafe | spark.In):
        chosen = frozenset(keys)
        return replace(bounds, keyed=True, keys=chosen if bounds.keys is None else bounds.keys & chosen), True
    if isinstance(given, spark.GreaterThan | spark.GreaterThanOrEqual):
        low = after if isinstance(given, spark.GreaterThan) else first
        return replace(bounds, keyed=True, key_from=max(bounds.key_from, low)), True
    if isinstance(given, spark.LessThan | spark.LessThanOrEqual):
        high = first if isinstance(given, spark.LessThan) else after
        high = high if bounds.key_before is None else min(bounds.key_before, high)
        return replace(bounds, keyed=True, key_before=high), True
    return bounds, False


def _number(column: str, value: Any) -> int | None:
    if column == "timestamp":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return (value - EPOCH) // timedelta(microseconds=1)
    return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else None


EVERYTHING: Final = Bounds()
