"""The streams of one client's connection that it grants credit for: TAIL and LOG_SCAN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from dispatcher.reading import reads
from dispatcher.reading.feeds import Feed, FeedRequest, Send
from dispatcher.reading.log_scan import LogScan
from dispatcher.reading.read_rates import Pace
from dispatcher.reading.surroundings import Surroundings
from dispatcher.reading.tail import Tail
from dispatcher.requests.requests import field_of
from logboom.errors import LogboomError, QuotaExceeded
from logboom.types import PartitionId
from logboom.wire import Frame, Kind

STREAMS_MAX: Final = 4096
"""Per connection."""


class Streams:
    """Of one session. ``reply`` sends a frame, ``fail`` an error, each for a request id."""

    def __init__(
        self,
        backend: Surroundings,
        *,
        reply: Callable[..., None],
        fail: Callable[[int, LogboomError], None],
        congested: Callable[[], bool],
        partitions: Callable[[dict[str, Any]], Sequence[PartitionId]],
        pace: Callable[[], Pace],
    ) -> None:
        """``pace``: how fast the client may read."""
        self._backend = backend
        self._reply = reply
        self._fail = fail
        self._congested = congested
        self._partitions = partitions
        self._pace = pace
        self._feeds: dict[int, Feed] = {}

    def open(self, frame: Frame) -> None:
        """A TAIL or a LOG_SCAN. Raises InvalidRequest, NoSuchPartition, QuotaExceeded, IndexCompacted."""
        request_id = frame.request_id
        if request_id in self._feeds or len(self._feeds) >= STREAMS_MAX:
            raise QuotaExceeded("too many tails", limit=STREAMS_MAX, used=len(self._feeds), retry_after=1.0)
        limit = self._backend.settings.reads.streams_max
        if self._backend.streams_open >= limit:
            used = self._backend.streams_open
            raise QuotaExceeded("too many tails are open on this node", limit=limit, used=used, retry_after=1.0)

        def send(kind: Kind, header: dict[str, Any], body: list[Any], flags: int) -> None:
            self._reply(request_id, kind, header, body, flags=flags)

        def ended(error: LogboomError | None) -> None:
            self._taken(request_id)
            if error is not None:
                self._fail(request_id, error)

        feed = self._made(frame, send, ended)
        self._feeds[request_id] = feed
        self._backend.streams_open += 1
        feed.move()

    def _taken(self, request_id: int) -> Feed | None:
        """It is none of the open ones any more."""
        feed = self._feeds.pop(request_id, None)
        self._backend.streams_open -= feed is not None
        return feed

    def _made(self, frame: Frame, send: Send, ended: Callable[[LogboomError | None], None]) -> Feed:
        wanted, pace = FeedRequest.parse(frame.header), self._pace()
        if frame.kind is Kind.TAIL:
            partition = reads.partition_of_header(self._backend, frame.header)
            return Tail(self._backend, partition, wanted, send=send, congested=self._congested, ended=ended, pace=pace)
        partitions = self._partitions(frame.header)
        through = field_of(frame.header, "through_global", int, 0)
        return LogScan(
            self._backend,
            partitions,
            wanted,
            through=through,
            send=send,
            congested=self._congested,
            ended=ended,
            pace=pace,
        )

    def credit(self, frame: Frame) -> None:
        """The client has room for more."""
        feed = self._feeds.get(frame.request_id)
        if feed is not None:
            feed.add_credit(field_of(frame.header, "bytes", int))

    def cancel(self, request_id: int) -> None:
        """The client wants no more."""
        feed = self._taken(request_id)
        if feed is not None:
            feed.close()

    def drained(self) -> None:
        """The connection takes more."""
        for feed in list(self._feeds.values()):  # one that ends takes itself off
            feed.move()

    def close(self) -> None:
        """The client is gone."""
        for request_id, feed in list(self._feeds.items()):
            feed.close()
            self._taken(request_id)
