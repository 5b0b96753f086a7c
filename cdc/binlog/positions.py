"""Positions in a source's history: binlog coordinates and sequence numbers.

A sequence number (``seq``) is a positive 63-bit integer made from the source's own coordinates, so that the
same transaction has the same seq, whichever process reads it and however often::

    bit 62 … 55   epoch                8 bits   rises when the source's history starts anew
    bit 54 … 34   binlog file number  21 bits   12 for binlog.000012
    bit 33 …  0   offset              34 bits   end of the transaction's last event in that file
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from cdc.base.errors import PermanentError, UsageError

EPOCH_BITS, FILE_BITS, OFFSET_BITS = 8, 21, 34
FILE_SHIFT = OFFSET_BITS
EPOCH_SHIFT = OFFSET_BITS + FILE_BITS
MAX_EPOCH = (1 << EPOCH_BITS) - 1
MAX_FILE = (1 << FILE_BITS) - 1
MAX_OFFSET = (1 << OFFSET_BITS) - 1

_FILE_NAME = re.compile(r"(?P<base>.+)\.(?P<number>\d{1,10})")


class SeqParts(NamedTuple):
    """The three fields of a seq."""

    epoch: int
    file_number: int
    offset: int


def make_seq(epoch: int, file_number: int, offset: int) -> int:
    """Packs a seq. Raises PermanentError if a field does not fit."""
    if not 0 <= epoch <= MAX_EPOCH:
        raise PermanentError(f"epoch {epoch} does not fit into {EPOCH_BITS} bits", remedy="Start a new destination.")
    if not 0 <= file_number <= MAX_FILE:
        raise PermanentError(
            f"binlog file number {file_number} does not fit into {FILE_BITS} bits",
            remedy="Run RESET on the source (RESET BINARY LOGS AND GTIDS, RESET MASTER) and start a new destination.",
        )
    if not 0 <= offset <= MAX_OFFSET:
        raise PermanentError(
            f"binlog offset {offset} does not fit into {OFFSET_BITS} bits (16 GiB)",
            remedy="Split the transaction that made the binlog file so large.",
        )
    return epoch << EPOCH_SHIFT | file_number << FILE_SHIFT | offset


def split_seq(seq: int) -> SeqParts:
    """Unpacks a seq. Raises UsageError unless it is a positive 63-bit integer."""
    if not 0 <= seq < 1 << 63:
        raise UsageError(f"{seq} is not a sequence number", remedy="Give a positive 63-bit integer.")
    return SeqParts(seq >> EPOCH_SHIFT, seq >> FILE_SHIFT & MAX_FILE, seq & MAX_OFFSET)


def format_seq(seq: int) -> str:
    """Returns a seq as people read it: ``0:12:4711`` is epoch 0, file 12, offset 4711."""
    return ":".join(str(part) for part in split_seq(seq))


@dataclass(frozen=True, order=True)
class BinlogPosition:
    """A position in the source's binlog: a file and an offset in it, as SHOW BINARY LOG STATUS prints them."""

    file: str
    pos: int

    @property
    def file_number(self) -> int:
        """The number in the file's name: 12 for ``binlog.000012``."""
        return split_file_name(self.file)[1]

    def __str__(self) -> str:
        return f"{self.file}:{self.pos}"


@dataclass(frozen=True)
class CommitPosition:
    """The end of a transaction in the source's binlog, with its GTID and commit time."""

    position: BinlogPosition
    gtid: str | None
    commit_time_us: int
    """Microseconds since 1970, UTC."""


def split_file_name(name: str) -> tuple[str, int]:
    """Splits a file name: ``binlog.000012`` → ``("binlog", 12)``. Raises UsageError for a name without a number."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"{name!r} is not the name of a binlog file", remedy="Give a name like binlog.000012.")
    return match["base"], int(match["number"])


def make_file_name(base: str, number: int) -> str:
    """Makes a file name as servers do: ``("binlog", 12)`` → ``binlog.000012``."""
    return f"{base}.{number:06d}"
