"""Decodes a table's rows twice, and compares them value by value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdc.binlog.positions import split_seq
from cdc.decode.layout import BEFORE, DELETE, INSERT, METADATA_FIELDS, range_layouts
from cdc.decode.reader import DecodeOptions, decode_transactions
from cdc.decode.transactions import TableHistory, Transactions
from cdc.lake.second_opinion import values
from cdc.lake.second_opinion.library import Image, Json, LibraryColumn, LibraryEvent, table_rows
from cdc.lake.second_opinion.report import Disagreement

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.decode.layout import TableLayout
    from cdc.lake.second_opinion.report import SecondOpinion

BATCH_BYTES = 1 << 20
"""Size of the row events that are decoded at once."""
_LONGEST_VALUE = 200
"""Characters of a value that are reported."""

OurImage = list[Any] | None
OurRow = tuple[int, int, OurImage, OurImage]
"""The seq of a row's transaction, the number of its event in it, and the row's old and new values."""
OurEvents = Iterator[tuple[tuple[int, int], Iterator[OurRow]]]
"""Our rows by seq and number of the event."""
Pair = tuple[int, str, values.Compare | values.NotCompared]
"""The ordinal and the name of one of our columns, and how its values are compared."""
FileOf = Callable[[int], str]
"""Returns the name of the source's binlog file that a seq lies in."""


class RowComparison:
    """Compares the rows of one table in some transactions. ``schema`` is the table's stored definition; ``hidden`` has
    the columns, in lower case, whose values are not reported, with their policies."""

    def __init__(
        self,
        result: SecondOpinion,
        transactions: Transactions,
        table: str,
        schema: TableSchema | None,
        file_of: FileOf,
        hidden: Mapping[str, str],
    ) -> None:
        self._result, self._transactions, self._table, self._schema = result, transactions, table, schema
        self._file_of, self._hidden = file_of, hidden
        self._names: list[str] = []
        """Our columns."""
        self._pairs: dict[tuple[LibraryColumn, ...], list[Pair]] = {}
        """By the library's columns."""

    def compare(self, limit: int) -> int:
        """Compares rows until there are no more, or ``limit`` is reached at the end of a row event. Returns their
        number. Raises what decoding raises."""
        layouts = [layout for _, layout, _ in range_layouts(self._transactions, {self._table: self._schema})]
        if not layouts:
            return 0
        layout = layouts[0]
        not_compared = {name: values.UNDECODABLE for name, kind in layout.shape if kind is None}
        writer = self._transactions.writer
        if self._schema is not None and writer is not None and writer.flavor == "mariadb":
            not_compared |= {column.name: values.GENERATED for column in self._schema.columns if column.is_generated}
        self._names = [column.name for column in layout.columns if column.name not in not_compared]
        for name, why in not_compared.items():
            self._result.leave_out(self._table, name, str(why))
        for column in layout.hidden:
            self._result.leave_out(self._table, column.name, str(values.HIDDEN))
        ours: OurEvents = itertools.groupby(self._our_rows(), key=lambda row: row[:2])
        bad = values.unreadable(layout.row_columns)
        if bad is not None:
            return self._leave_out_rows(ours, bad, limit)
        theirs = table_rows(self._transactions, self._table, self._schema)
        rows = self._compare_events(ours, theirs, layout, limit)
        self._result.rows += rows
        return rows

    def _our_rows(self) -> Iterator[OurRow]:
        options = DecodeOptions(images="both", columns=self._names, target_bytes=BATCH_BYTES)
        history = TableHistory.always(self._schema)
        for batch in decode_transactions(self._transactions, table=self._table, options=options, history=history):
            yield from _rows_of(batch, len(self._names))

    def _leave_out_rows(self, ours: OurEvents, why: tuple[str, values.NotCompared], limit: int) -> int:
        rows = 0
        for _, event in ours:
            images = [image for *_, old, new in event for image in (old, new) if image is not None]
            rows += len(images)
            reason = f"its column {why[0]}: {why[1]}"
            self._result.leave_out(self._table, "", reason, len(images) * len(self._names))
            if rows >= limit:
                break
        return 0

    def _compare_events(self, ours: OurEvents, theirs: Iterator[LibraryEvent], layout: TableLayout, limit: int) -> int:
        rows = 0
        for event in theirs:
            if not event.rows and event.fault is None:
                continue
            key, mine = next(ours, ((event.seq, event.ordinal), iter(())))
            our_rows = list(mine)
            if key != (event.seq, event.ordinal) or (event.fault is None and len(our_rows) != len(event.rows)):
                self._differ(event.seq, f"{len(our_rows)} rows of event {key}", f"{len(event.rows)} rows of event "
                             f"{(event.seq, event.ordinal)}")  # fmt: skip
                return rows
            if event.fault is not None:
                images = sum(image is not None for row in our_rows for image in row[2:])
                reason = f"{values.FAULT.what}: {event.fault}"
                self._result.leave_out(self._table, "", reason, images * len(self._names))
                continue
            rows += self._compare_rows(our_rows, event, layout)
            if rows >= limit:
                return rows
        for key, mine in ours:
            self._differ(key[0], _count(key[1], list(mine)), "no such row event")
            break
        return rows

    def _compare_rows(self, ours: Sequence[OurRow], event: LibraryEvent, layout: TableLayout) -> int:
        if event.columns not in self._pairs:
            self._pairs[event.columns] = self._paired(event, layout)
        pairs = self._pairs[event.columns]
        for (_, _, *mine), theirs in zip(ours, event.rows, strict=True):
            for image, our_values, their_image in zip(("old", "new"), mine, theirs, strict=True):
                if (our_values is None) != (their_image is None):
                    self._differ(event.seq, _presence(image, our_values), _presence(image, their_image))
                elif our_values is not None and their_image is not None:
                    self._compare_image(event.seq, image, our_values, their_image, pairs)
        return len(ours)

    def _paired(
        self, event: LibraryEvent, layout: TableLayout
    ) -> list[tuple[int, str, values.Compare | values.NotCompared]]:
        names = [column.name for column in layout.row_columns]
        their_names = [column.name for column in event.columns]
        if names != their_names:
            self._differ(event.seq, f"columns {', '.join(names)}", f"columns {', '.join(their_names)}")
        theirs = {column.name: column for column in event.columns}
        ordinals = {name: ordinal for ordinal, name in enumerate(self._names)}
        return [
            (ordinals[column.name], column.name, values.comparison(column, theirs[column.name]))
            for column in layout.columns
            if column.name in ordinals and column.name in theirs
        ]

    def _compare_image(
        self,
        seq: int,
        image: str,
        ours: Sequence[Any],
        theirs: Image,
        pairs: Sequence[Pair],
    ) -> None:
        their_values, nones = theirs
        compared = 0
        for ordinal, name, compare in pairs:
            value = their_values[name]
            outcome = (
                compare
                if isinstance(compare, values.NotCompared)
                else values.outcome(compare, ours[ordinal], value, nones.get(name))
            )
            if isinstance(outcome, values.NotCompared):
                self._result.leave_out(self._table, name, str(outcome), 1)
                continue
            compared += 1
            if outcome is not None:
                self._differ(seq, self._text(name, ours[ordinal]), self._text(name, value), name, image)
        self._result.values += compared

    def _differ(self, seq: int, ours: str, theirs: str, column: str | None = None, image: str = "event") -> None:
        pos = split_seq(seq).offset
        self._result.differ(Disagreement(self._file_of(seq), pos, seq, self._table, column, image, ours, theirs))

    def _text(self, column: str, value: Any) -> str:
        """A value as it is reported."""
        policy = self._hidden.get(column.lower())
        if policy is not None:
            return f"(hidden by the policy {policy})"
        if isinstance(value, Json):
            value = value.value
        text = value.hex() if isinstance(value, bytes) else "NULL" if value is None else str(value)
        return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}… ({len(text)} characters)"


def _count(ordinal: int, rows: Sequence[object]) -> str:
    return f"{len(rows)} rows in row event {ordinal + 1} of the transaction"


def _presence(image: str, value: object) -> str:
    return f"{'no ' if value is None else ''}{image} row"


def _rows_of(batch: pa.RecordBatch, columns: int) -> Iterator[OurRow]:
    first = len(METADATA_FIELDS)
    ops, seqs, numbers = (batch.column(name).to_pylist() for name in ("_op", "_seq", "_row"))
    new = [batch.column(first + i).to_pylist() for i in range(columns)]
    before = batch.column(BEFORE)
    old = [before.field(i).to_pylist() for i in range(columns)]
    for row, op in enumerate(ops):
        yield (
            seqs[row],
            numbers[row] >> 32,
            None if op == INSERT else [column[row] for column in old],
            None if op == DELETE else [column[row] for column in new],
        )
