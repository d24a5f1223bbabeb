"""A sample as text, for Prometheus or OpenMetrics. Runs on a thread: it touches nothing of the node."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ports.counts import Counted
from server.metrics.catalogue import OTHERS, PER_PARTITION, PREFIX
from server.metrics.catalogue import Metric as Described
from server.metrics.sample import Labels, Sample, Value

GZIP_BYTES_MIN: Final = 4096


class Process(Collector):
    """The process's own numbers, under the names that all programs give them."""

    def __init__(self) -> None:
        nowhere = CollectorRegistry()  # not the library's global one
        self._parts = (ProcessCollector(registry=nowhere), GCCollector(registry=nowhere))

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        for part in self._parts:
            yield from part.collect()


@cache
def _process() -> Process:
    return Process()


class _Once(Collector):
    """One sample, for one answer."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def collect(self) -> Iterator[Metric]:
        for chapter in OTHERS:
            for described in chapter.metrics:
                yield _family(described, self._sample.values.get(described, ()))
        for column, described in enumerate(PER_PARTITION.metrics, 1):
            family = GaugeMetricFamily(PREFIX + described.name, described.help, labels=described.labels)
            for row in self._sample.rows:
                family.add_metric((str(row[0]),), row[column])
            yield family


def _family(described: Described, values: Iterable[tuple[Labels, Value]]) -> Metric:
    name = PREFIX + described.name
    if described.type == "histogram":
        histogram = HistogramMetricFamily(name, described.help, labels=described.labels)
        for labels, value in values:
            if isinstance(value, Counted):
                histogram.add_metric(labels, buckets=_cumulative(value), sum_value=value.total)
        return histogram
    make = CounterMetricFamily if described.type == "counter" else GaugeMetricFamily
    family = make(name, described.help, labels=described.labels)
    for labels, value in values:
        if not isinstance(value, Counted):
            family.add_metric(labels, value)
    return family


def _cumulative(value: Counted) -> list[tuple[str, float]]:
    bounds = [*map(floatToGoString, value.bounds), "+Inf"]
    return list(zip(bounds, accumulate(value.counts), strict=True))


def render(sample: Sample, *, accept: str, gzipped: bool) -> tuple[bytes, str, bool]:
    """Body, content type, and whether it is compressed."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_process())
    registry.register(_Once(sample))
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # it compares versions that are no numbers
        encode, content_type = choose_encoder("")
    body: bytes = encode(registry)
    if gzipped and len(body) >= GZIP_BYTES_MIN:
        return gzip.compress(body, 1), content_type, True
    return body, content_type, False
