"""State machines of users that are no good."""

from __future__ import annotations

MODULE = """
import json
import os
import time

from logboom.errors import CorruptData
from logboom.state_machine import Position, Space


class Broken:
    needs_records = False

    def dump(self):
        raise NotImplementedError

    load = dump

    @classmethod
    def open(cls, directory, partition_id, settings):
        (directory / "begun").write_text("and not ended")
        raise RuntimeError("no configuration")


class Counter:
    needs_records = False
    unsaved_bytes = 0

    @classmethod
    def open(cls, directory, partition_id, settings):
        if os.path.exists(os.environ["REFUSE_TO_LOAD"] + "-in") and "/n2/" in str(directory):
            raise ModuleNotFoundError("no module named 'counter'")
        for name in ("n1", "n2", "n3"):
            hangs = os.environ["REFUSE_TO_LOAD"] + "-to-open-" + name
            while "/" + name + "/" in str(directory) and os.path.exists(hangs):
                time.sleep(0.01)
        self = cls()
        self.path, self.at, self.count, self.kept = directory / "state", (0, 0), 0, {}
        if self.path.exists():
            self.at, self.count, kept = json.loads(self.path.read_text())
            self.kept = {bytes.fromhex(key): bytes.fromhex(value) for key, value in kept.items()}
        return self

    def _save(self):
        self.path.write_text(json.dumps([self.at, self.count, {k.hex(): v.hex() for k, v in self.kept.items()}]))

    def position(self):
        return Position(*self.at)

    def meta(self):
        return iter(list(self.kept.items()))

    def checkpoint(self):
        if os.path.exists(os.environ["REFUSE_TO_LOAD"] + "-to-save"):
            raise ConnectionRefusedError(111, "no such service")

    def close(self):
        while os.path.exists(os.environ["REFUSE_TO_LOAD"] + "-to-close"):
            time.sleep(0.01)
        open(os.environ["REFUSE_TO_LOAD"] + "-closed-" + self.path.parent.parent.name, "w").close()

    def apply(self, batches, seal):
        while os.path.exists(os.environ["REFUSE_TO_LOAD"] + "-to-end"):
            time.sleep(0.01)
        results = [bytes(1)] * len(batches)
        self.at, changes = seal(results)
        self.count += sum(batch.count for batch in batches)
        for key, value in changes.items():
            self.kept.pop(key, None) if value is None else self.kept.update({key: value})
        self._save()
        return results

    def get(self, keys):
        return [(self.count,) for _ in keys], self.position()

    def scan(self, *, start, end, limit, chunk):
        while os.path.exists(os.environ["REFUSE_TO_LOAD"] + "-to-scan"):
            time.sleep(0.01)
        yield [(b"count", (self.count,))], self.position()

    def digest(self):
        return self.count.to_bytes(16, "big"), self.position()

    def dump(self):
        entries = [(Space.STATE, b"count", b"%d" % self.count)]
        entries += [(Space.META, key, value) for key, value in sorted(self.kept.items())]
        return Dump(self.position(), entries, "/n2/" in str(self.path))

    def load(self, entries, position):
        if os.path.exists(os.environ["REFUSE_TO_LOAD"]):
            raise RuntimeError("not today")
        for space, key, value in entries:
            if space == Space.STATE:
                self.count = int(value)
            else:
                self.kept[key] = value
        self.at = position
        self._save()


class Deaf(Counter):
    def load(self, entries, position):
        raise NotImplementedError


class Rotten(Counter):
    # Damaged where a file says so, once; its load and scrub return when others let them.
    def scrub(self):
        where, name = os.environ["REFUSE_TO_LOAD"], self.path.parent.parent.name
        while os.path.exists(where + "-to-scrub-" + name):
            time.sleep(0.01)
        if os.path.exists(where + "-rotten-" + name):
            os.remove(where + "-rotten-" + name)
            raise CorruptData("rotten")
        return iter(())

    def load(self, entries, position):
        while os.path.exists(os.environ["REFUSE_TO_LOAD"] + "-to-load-" + self.path.parent.parent.name):
            time.sleep(0.01)
        super().load(entries, position)


class Dump:
    def __init__(self, position, entries, second):
        self.position, self._entries, self._second = position, entries, second

    def entries(self):
        hangs = os.environ["REFUSE_TO_LOAD"] + "-to-dump"
        while os.path.exists(hangs) or (self._second and os.path.exists(hangs + "-in")):
            time.sleep(0.01)
        if self._second and os.path.exists(os.environ["REFUSE_TO_LOAD"] + "-to-give-in"):
            raise ConnectionRefusedError(111, "no such service")
        return iter(self._entries)

    def close(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
"""
