"""The rows of an input split that a task gives to Spark: a bitmap, and a proof that it was made of these rows."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cdc.base.errors import PermanentError

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc.decode.last_changes import ChangeKeys

SEEN = "_towpath_seen"
"""Column of chosen rows: the row was there after some change of the batch."""


@dataclass(frozen=True)
class RowChoice:
    """The rows of one split that win."""

    rows: int
    """The rows of the split."""
    last: bytes
    """A bit for each row, deflated."""
    seen: bytes
    """A bit for each row: the key of this winning row has a change that is no delete; deflated."""
    checksum: int
    """The :func:`checksum` of the rows that win."""

    @classmethod
    def of(cls, last: npt.NDArray[np.bool_], seen: npt.NDArray[np.bool_], keys: ChangeKeys) -> RowChoice:
        """Returns the choice of these rows, whose keys are given."""
        return cls(
            rows=len(last),
            last=zlib.compress(np.packbits(last).tobytes(), 1),
            seen=zlib.compress(np.packbits(seen).tobytes(), 1),
            checksum=checksum(keys.op[last], keys.seq[last], keys.row[last]),
        )


class ChosenRows:
    """Takes the rows that win from the batches of one split, in their order."""

    def __init__(self, choice: RowChoice, place: str) -> None:
        self._choice, self._place = choice, place
        self._last = _unpacked(choice.last, choice.rows)
        self._seen = _unpacked(choice.seen, choice.rows)
        self._done = 0
        self._checksum = 0

    def of(self, batch: pa.RecordBatch, seen: pa.Field | None) -> pa.RecordBatch:
        """Returns the next batch's rows that win; with ``seen``, with this column, too. Raises PermanentError if there
        are more rows than were planned."""
        import pyarrow as pa

        part = slice(self._done, self._done + len(batch))
        self._done += len(batch)
        if self._done > self._choice.rows:
            raise self._error()
        last = self._last[part]
        winners = batch if last.all() else batch.filter(pa.array(last))
        op, seq, row = (winners.column(name).to_numpy() for name in ("_op", "_seq", "_row"))
        self._checksum = (self._checksum + checksum(op, seq, row)) % (1 << 64)
        return winners if seen is None else winners.append_column(seen, pa.array(self._seen[part][last]))

    def require_all(self) -> None:
        """Raises PermanentError unless these were the rows of the plan."""
        if self._done != self._choice.rows or self._checksum != self._choice.checksum:
            raise self._error()

    def _error(self) -> PermanentError:
        return PermanentError(
            f"a task has decoded other rows than the plan of the batch was made of: {self._done} instead of "
            f"{self._choice.rows}, or in another order",
            place=self._place,
            remedy="Check that all machines run the same towpath, and report this.",
        )


def checksum(op: npt.NDArray[np.int8], seq: npt.NDArray[np.int64], row: npt.NDArray[np.int64]) -> int:
    """Returns a sum over rows that tells whether they are the same."""
    mixed = seq.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) ^ row.astype(np.uint64) * np.uint64(
        0xC2B2AE3D27D4EB4F
    )
    mixed ^= (op.astype(np.uint64) + np.uint64(1)) * np.uint64(0x165667B19E3779F9)
    mixed ^= mixed >> np.uint64(29)
    return int(np.sum(mixed * np.uint64(0xBF58476D1CE4E5B9), dtype=np.uint64))


def _unpacked(packed: bytes, rows: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(zlib.decompress(packed), dtype=np.uint8), count=rows).view(np.bool_)
