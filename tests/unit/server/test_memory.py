"""What a process takes of memory, and how much its control groups let it have."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from logboom.types import MIB
from server.world.memory import limit_bytes, taken_bytes

SIZE = 64 * MIB
SLACK = 16 * MIB


def test_pages_of_mapped_files_are_not_counted(tmp_path: Path) -> None:
    """States are read through a map: a scan over one as large as the limit was the end of all writes."""
    file = tmp_path / "state"
    file.write_bytes(bytes(SIZE))
    before = taken_bytes()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[place] for place in range(0, SIZE, 4096)) == 0
        assert taken_bytes() - before < SLACK


def test_what_the_process_has_made_is() -> None:
    before = taken_bytes()
    # Of its own: what the interpreter has freed, and not given back, would be taken again.
    with mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as made:
        made.write(b"1" * SIZE)
        assert taken_bytes() - before > SIZE - SLACK


def machine(root: Path, cgroup: str, **limits: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for place, limit in limits.items():
        file = root / "sys/fs/cgroup" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(limit + "\n")
    return root


@pytest.mark.parametrize(
    ("cgroup", "limits", "found"),
    [
        ("0::/\n", {"memory.max": "268435456"}, 268435456),  # a container, second version
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/system.slice/logboom.service\n", {"system.slice/logboom.service/memory.max": "1000"}, 1000),
        ("0::/a/b\n", {"a/memory.max": "500", "a/b/memory.max": "1000"}, 500),  # those above count, too
        ("0::/a\n", {"a/memory.max": "max", "a/memory.high": "700"}, 700),  # beyond it the process is slowed down
        ("0::/../../other\n", {"memory.max": "900"}, 900),
        ("9:memory:/docker/1\n1:name=systemd:/docker/1\n", {"memory/memory.limit_in_bytes": "4096"}, 4096),
        ("9:cpu,memory:/docker/1\n", {"memory/docker/1/memory.limit_in_bytes": "4096"}, 4096),
        ("9:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("9:memory:/\n", {"memory/memory.limit_in_bytes": "what?"}, None),
        ("", {}, None),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, cgroup: str, limits: dict[str, str], found: int | None) -> None:
    assert limit_bytes(machine(tmp_path, cgroup, **limits)) == found


def test_where_there_are_no_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert limit_bytes(tmp_path) is None
