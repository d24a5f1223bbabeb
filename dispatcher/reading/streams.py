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
LOGS_PER_STREAM: Final = 16
"""So many logs may be scanned in all where one stream may be open: each takes a kilobyte, and is looked at then."""
RETRY_AFTER_S: Final = 1.0


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
        self._logs = 0
        """That scans read, for each of them."""

    def open(self, frame: Frame) -> None:
        """A TAIL or a LOG_SCAN. Raises InvalidRequest, NoSuchPartition, QuotaExceeded, IndexCompacted."""
        request_id = frame.request_id
        if request_id in self._feeds or len(self._feeds) >= STREAMS_MAX:
            raise QuotaExceeded("too many tails", limit=STREAMS_MAX, used=len(self._feeds), retry_after=RETRY_AFTER_S)
        limit = self._backend.settings.reads.streams_max
        if self._backend.streams_open >= limit:
            used = self._backend.streams_open
            raise QuotaExceeded(
                "too many tails are open on this node", limit=limit, used=used, retry_after=RETRY_AFTER_S
            )

        def send(kind: Kind, header: dict[str, Any], body: list[Any], flags: int) -> None:
            self._reply(request_id, kind, header, body, flags=flags)

        def ended(error: LogboomError | None) -> None:
            self._taken(request_id)
            if error is not None:
                self._fail(request_id, error)

        feed = self._made(frame, send, ended)
        self._feeds[request_id] = feed
        self._count(feed, 1)
        feed.move()

    def _taken(self, request_id: int) -> Feed | None:
        """It is none of the open ones any more."""
        feed = self._feeds.pop(request_id, None)
        if feed is not None:
            self._count(feed, -1)
        return feed

    def _count(self, feed: Feed, more: int) -> None:
        self._backend.streams_open += more
        self._logs += more * feed.width
        self._backend.streams_logs += more * feed.width

    def _check_logs(self, more: int) -> None:
        """A scan of more than there is room for may begin while there is some. Raises QuotaExceeded."""
        on_node = self._backend.streams_logs, self._backend.settings.reads.streams_max
        for who, used, streams in (("this connection", self._logs, STREAMS_MAX), ("this node", *on_node)):
            limit = LOGS_PER_STREAM * streams
            if used >= limit or (used + more > limit and more <= limit):
                raise QuotaExceeded(
                    f"scans of {who} read {used} logs, those of each counted, and {more} more are too many: name "
                    "the partitions that matter",
                    limit=limit,
                    used=used,
                    retry_after=RETRY_AFTER_S,
                )

    def _made(self, frame: Frame, send: Send, ended: Callable[[LogboomError | None], None]) -> Feed:
        wanted, pace = FeedRequest.parse(frame.header), self._pace()
        if frame.kind is Kind.TAIL:
            partition = reads.partition_of_header(self._backend, frame.header)
            return Tail(self._backend, partition, wanted, send=send, congested=self._congested, ended=ended, pace=pace)
        partitions = list(dict.fromkeys(self._partitions(frame.header)))
        self._check_logs(len(partitions))
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
