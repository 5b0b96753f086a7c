"""One run of ``cdc tail``: from the store's transactions to pieces of output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.binlog.positions import EPOCH_SHIFT
from cdc.watch.tail.changes import ChangeChoice, ChangeDecoder, Longs, Rows, merged
from cdc.watch.tail.follow import Piece, StoreFollower
from cdc.watch.tail.lines import JsonLines, ReadableLines

if TYPE_CHECKING:
    from cdc.config import DestinationConfig


class Tail:
    """The changes of a destination as output, from a position on."""

    def __init__(
        self,
        config: DestinationConfig,
        follower: StoreFollower,
        choice: ChangeChoice,
        *,
        as_json: bool,
        colours: bool,
        source_values: bool,
        remark: Callable[[str], None],
    ) -> None:
        """``remark`` is called with what users should know about the changes. See :class:`ChangeDecoder`."""
        self._follower = follower
        self._choice = choice
        self._remark = remark
        self._decoder = ChangeDecoder(config, choice, source_values=source_values, remark=remark)
        find = follower.reader.source_file
        self._lines: JsonLines | ReadableLines = JsonLines(find) if as_json else ReadableLines(find, colours=colours)
        self._epoch = follower.seq >> EPOCH_SHIFT
        self._shown_seq = 0
        self._lost = 0

    def output(self, until_seq: int | None = None) -> Iterator[memoryview | bytes]:
        """Yields the lines of all changes that the store has now, in UTF-8, a bounded number at a time.

        Raises what :meth:`StoreFollower.pieces` and :meth:`ChangeDecoder.rows` raise.
        """
        for piece in self._follower.pieces(self._choice.tables, until_seq):
            self._note(piece)
            yield from self._piece(piece)
        if self._follower.lost > self._lost:
            self._remark(f"{self._follower.lost - self._lost} transactions are missing: the store lost them to damage")
            self._lost = self._follower.lost

    def _note(self, piece: Piece) -> None:
        epoch = int(piece.entries["seq"][0]) >> EPOCH_SHIFT
        if epoch != self._epoch:
            if self._epoch or self._shown_seq:
                self._remark(f"the source's history starts anew: epoch {epoch} (a failover, or a reset of its binlog)")
            self._epoch = epoch

    def _piece(self, piece: Piece) -> Iterator[memoryview | bytes]:
        for statement in self._decoder.statements(piece):
            entry = piece.entries[0]
            yield (self._head(piece) + self._lines.of_statement(statement, entry)).encode()
            self._shown_seq = int(entry["seq"])
        tables = self._decoder.tables(piece, self._follower.tables)
        streams = [self._stream(self._decoder.rows(piece, name, bit, len(tables))) for name, bit in tables]
        for lines, seqs in merged(streams):
            yield _bytes(self._with_heads(piece, lines, seqs))

    def _stream(self, row_batches: Iterator[Rows]) -> Iterator[tuple[Longs, pa.Array, Longs]]:
        """Yields the lines of one table's rows with the offsets and seqs that order them."""
        for rows in row_batches:
            at, seqs = rows.at, rows.batch.column(1).to_numpy()
            done = 0
            for lines in self._lines.of_rows(rows):
                stop = done + len(lines)
                yield at[done:stop], lines, seqs[done:stop]
                done = stop

    def _head(self, piece: Piece) -> str:
        """Returns the line before the changes of a piece's only transaction."""
        heads = self._lines.heads(piece.entries)
        return "" if heads is None or int(piece.entries["seq"][0]) == self._shown_seq else str(heads[0])

    def _with_heads(self, piece: Piece, lines: pa.Array, seqs: Longs) -> pa.Array:
        heads = self._lines.heads(piece.entries)
        if heads is not None:
            is_first = np.diff(seqs, prepend=self._shown_seq) != 0
            numbers = np.searchsorted(piece.entries["seq"].astype(np.int64), seqs)
            before = heads.take(pa.array(numbers, mask=~is_first)).cast(pa.large_string()).fill_null("")
            lines = pc.binary_join_element_wise(before, lines, pa.scalar("", pa.large_string()))
        self._shown_seq = int(seqs[-1])
        return lines


def _bytes(lines: pa.LargeStringArray) -> memoryview:
    """Returns the lines, one after another."""
    offsets = np.frombuffer(lines.buffers()[1], dtype=np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(lines.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
