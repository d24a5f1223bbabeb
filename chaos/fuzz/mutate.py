"""Mutations by seed, for tests: no coverage, but quick and the same everywhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from chaos.fuzz.target import INPUT_BYTES_MAX

EDGES: Final = (
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    4095,
    65535,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 62,
    (1 << 64) - 1,
)
WIDTHS: Final = (1, 2, 4, 8)


def mutated(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One of ``corpus``, changed in one to four places."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 4)):
        rng.choice(CHANGES)(rng, data, corpus)
    return bytes(data[:INPUT_BYTES_MAX])


def _flip(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _put(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _cut(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.choice((1, 2, 8, 64, len(data)))]


def _repeat(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.randint(1, 32)]
    data[start:start] = piece * rng.choice((1, 2, 100))


def _splice(rng: random.Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = rng.choice(corpus)
    start, size = rng.randrange(len(other) + 1), rng.choice((4, 16, 64, len(other)))
    at = rng.randrange(len(data) + 1)
    data[at : at + rng.choice((0, size))] = other[start : start + size]


def _length(rng: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """A number where a length may stand: on an edge, or beside what is there."""
    width = rng.choice(WIDTHS)
    if len(data) < width:
        return
    at, order = rng.randrange(len(data) - width + 1), rng.choice(("little", "big"))
    near = int.from_bytes(data[at : at + width], order) + rng.randint(-2, 2)  # type: ignore[arg-type]
    value = rng.choice((near, rng.choice(EDGES), len(data) - at - width)) % (1 << 8 * width)
    data[at : at + width] = value.to_bytes(width, order)  # type: ignore[arg-type]


CHANGES: Final = (_flip, _put, _cut, _repeat, _splice, _length, _length)
