"""What passes through connections is counted as what it is."""

from __future__ import annotations

from logboom.wire import Alike, Frame, Kind, encode
from tests.unit.server.net_world import Session, serving


async def test_frames_that_leave_in_one_write_count_each_and_are_heard_each() -> None:
    class Gathered(Session):
        def frame(self, frame: Frame) -> None:
            super().frame(frame)
            if frame.kind is Kind.PING:
                self.open.send([Alike(Kind.PONG, {}).to([2, 3, 4])], frames=3)

    async with serving(Gathered) as it:
        client = await it.friend()
        before = it.traffic.frames_out
        await client.say(*encode(Kind.PING, {}, request_id=1))
        heard = [await client.hear() for _ in range(4)]
        assert [frame.kind for frame in heard].count(Kind.PONG) == 3
        assert it.traffic.frames_out - before == len(heard)
