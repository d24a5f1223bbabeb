"""The number of a file's format that this release does not know: another release wrote it, or it has rotted.

Files begin with a magic of six bytes and the number, a u16; a later format keeps it and the checksum where they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Final, NoReturn

import google_crc32c

from logboom.errors import CorruptData, IncompatibleVersion

FORMAT: Final = struct.Struct("<H")
FORMAT_AT: Final = 6
CRC: Final = struct.Struct("<I")


def ends_with_crc(raw: bytes) -> bool:
    """The last four bytes are the checksum of all before."""
    return CRC.pack(google_crc32c.value(raw[: -CRC.size])) == raw[-CRC.size :]


def refuse_format(
    raw: bytes, *, known: Collection[int], what: str, path: str, holds: Callable[[bytes], bool] = ends_with_crc
) -> NoReturn:
    """Raises IncompatibleVersion; or CorruptData, if nothing but the number is not as it was.

    ``raw``: all that the checksum covers, with it; ``holds`` tells whether it fits.
    """
    (found,) = FORMAT.unpack_from(raw, FORMAT_AT)
    for number in known:
        if holds(raw[:FORMAT_AT] + FORMAT.pack(number) + raw[FORMAT_AT + FORMAT.size :]):
            said = f"{path}: damaged: {what} of format {found}, it was {number}"
            raise CorruptData(said, path=path, offset=FORMAT_AT)
    raise IncompatibleVersion(
        f"{path}: {what} of format {found}; this release reads {max(known)}. Nothing was changed",
        found=found,
        supported=max(known),
        path=path,
    )
