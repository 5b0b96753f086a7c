"""Unpacks the compressed transactions of a binlog file into a copy, which is read in the file's stead."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from cdc.base.errors import DamagedError, StorageError
from cdc.binlog import events
from cdc.binlog.constants import MAGIC
from cdc.binlog.framer import Decision, Framer, StopsAtPrepared

_OUT_BYTES = 8 << 20


class _CopyHooks(StopsAtPrepared):
    """Keeps every transaction, and writes it behind the descriptions and names of files as the source has them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        file.write(MAGIC)

    def table(self, db: str, table: str) -> int | None:
        return 0

    def statement(self, query: events.QueryEvent, in_transaction: bool) -> Decision:
        return Decision(True)

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        self._file.write(events.stored_format_description(event))

    def rotate(self, rotate: events.RotateEvent, artificial: bool) -> None:
        if artificial:
            self._file.write(events.make_rotate(rotate.file, rotate.pos, 0))

    def flush(self, framer: Framer) -> None:
        self._file.write(framer.take_output())
        framer.drop_output()
        framer.take_rows()

    def roll(self, framer: Framer) -> None:
        raise AssertionError("a copy has no segments")

    def set_statement_end(self, offset: int, length: int) -> int:
        raise AssertionError("no row event is left out")


def copy_unpacked(path: Path, buf: npt.NDArray[np.uint8], copy: IO[bytes]) -> DamagedError | None:
    """Copies the transactions of a mapped binlog file to ``copy``. Events that no reader needs are left out, and every
    event has a checksum.

    Returns the damage at which the copy ends, if there is any. Raises StorageError, UnsupportedEventError.
    """
    damage: DamagedError | None = None
    try:
        hooks = _CopyHooks(copy)
        framer = Framer(buf, hooks, packets=False, out_bytes=_OUT_BYTES, place=str(path), may_lack=lambda *_: True)
        framer.st.in_pos = len(MAGIC)
        framer.fed(len(buf))
        try:
            framer.run()
        except DamagedError as error:
            damage = error
        framer.abandon_transaction()
        hooks.flush(framer)
        copy.flush()
    except OSError as error:
        raise StorageError(
            f"cannot be unpacked: {error.strerror}",
            place=str(path),
            remedy="Compressed transactions are unpacked into a temporary file: point TMPDIR to a disk with more room.",
        ) from None
    return damage
