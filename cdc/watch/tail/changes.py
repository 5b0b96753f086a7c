"""Decodes the rows of a piece of the store, and brings the rows of all tables into the order of their events.

Each table is decoded by itself, some megabytes at a time. A row's place is the offset of its row event in the segment,
which orders the rows of all tables; so the tables' arrays are merged by these offsets, never further than the table
that has been decoded least far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.binlog.sql.statements import classify
from cdc.decode.jsonl import OPERATIONS
from cdc.decode.layout import BEFORE, METADATA_FIELDS, TableLayout
from cdc.decode.policies import ColumnPolicies
from cdc.decode.reader import DecodeOptions, Decoder, DecodeStats
from cdc.decode.row_events import event_offsets
from cdc.decode.scan import table_events
from cdc.decode.transactions import TableHistory
from cdc.lake.history import UNCHANGED, HistoryPolicies, applied, decodable, matches
from cdc.lake.rows.row_keys import RowKey

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.watch.tail.follow import Piece

Longs = npt.NDArray[np.int64]

_OPTIONS = DecodeOptions(images="both")
_PIECE_BYTES, _LEAST_BYTES = 8 << 20, 1 << 18
"""Bytes of row events that are decoded together, of all tables; and of one table at least."""


@dataclass(frozen=True)
class Rows:
    """Changed rows of one table, in order."""

    table: str
    batch: pa.RecordBatch
    """The columns of :data:`~cdc.decode.layout.METADATA_FIELDS`, the table's columns, and ``_before``."""
    key: tuple[str, ...]
    """The columns that identify a row, as they are called in the batch."""
    at: Longs
    """The offset of each row's event in the segment."""

    @property
    def columns(self) -> list[str]:
        """The names of the table's columns."""
        return [name for name in self.batch.schema.names[len(METADATA_FIELDS) :] if name != BEFORE]


@dataclass(frozen=True)
class DdlLine:
    """A DDL statement."""

    tables: tuple[str, ...]
    """The tables that it names."""
    sql: str
    at: int
    """The offset of its event in the segment."""


@dataclass(frozen=True)
class ChangeChoice:
    """The changes that are wanted."""

    tables: frozenset[str] | None = None
    """None: all."""
    keys: tuple[RowKey, ...] = ()
    """Only changes of these rows, all of the same table; none: of all rows."""
    operations: frozenset[str] | None = None
    """The kinds of changes that are shown: insert, update, delete, ddl; None: all."""

    def takes(self, table: str) -> bool:
        return self.tables is None or table in self.tables

    def takes_operation(self, name: str) -> bool:
        return self.operations is None or name in self.operations


class ChangeDecoder:
    """Decodes the changes of pieces of a store."""

    def __init__(
        self, config: DestinationConfig, choice: ChangeChoice, *, source_values: bool, remark: Callable[[str], None]
    ) -> None:
        """``source_values``: values as the source has them, without the column policies of the configuration.
        ``remark`` is called with what users should know."""
        self._config = config
        self._choice = choice
        self._source_values = source_values
        self._remark = remark
        self._told: set[str] = set()
        self._policies: dict[str, HistoryPolicies] = {}

    def statements(self, piece: Piece) -> Iterator[DdlLine]:
        """Yields the wanted DDL statements of a piece. Raises DamagedError."""
        if not piece.is_ddl or not self._choice.takes_operation("ddl"):
            return
        transactions = piece.transactions
        begins, ends = transactions.bounds()
        ignores_case = self._config.tables.ignores_case
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            for at, query in transactions.queries(begin, end):
                statement = classify(query.sql, query.db, query.sql_mode, ignores_case=ignores_case)
                tables = tuple(f"{db}.{table}" for db, table in statement.tables)
                if statement.kind == "ddl" and (not tables or any(map(self._choice.takes, tables))):
                    yield DdlLine(tables, query.sql, at)

    def tables(self, piece: Piece, names: list[str]) -> list[tuple[str, int]]:
        """Returns the wanted tables that may have rows in a piece, with their bits in table masks. ``names``: all
        tables, by their numbers."""
        masks = piece.entries["table_mask"][piece.entries["row_events"] > 0]
        mask = int(np.bitwise_or.reduce(masks)) if len(masks) else 0
        bits = {name: 1 << (number & 63) for number, name in enumerate(names)}
        return [(name, bit) for name, bit in bits.items() if mask & bit and self._choice.takes(name)]

    def rows(self, piece: Piece, table: str, mask: int, tables: int) -> Iterator[Rows]:
        """Yields the wanted rows of a table. ``mask``: its bit in table masks; ``tables``: how many are decoded side by
        side.

        Raises DamagedError, UnsupportedEventError, SourceRefusedError, ConfigError for a policy that does not fit."""
        if table not in self._policies:
            self._policies[table] = UNCHANGED if self._source_values else HistoryPolicies.of(self._config, table)
        policies, keys = self._policies[table], self._config.table_apply(table).keys
        transactions = piece.transactions.of_tables(mask)
        history = TableHistory.always(None if piece.schemas is None else piece.schemas.tables.get(table))
        most_bytes = max(_LEAST_BYTES, _PIECE_BYTES // tables)
        decoder: Decoder | None = None
        policed: ColumnPolicies | None = None
        key_names: tuple[str, ...] = ()
        for run in table_events(transactions, table, most_bytes, history, policies.values):
            if decoder is None or decoder.layout is not run.layout:
                policed = policies.of_layout(run.layout)
                key_names = _key_names(run.layout, keys, policed)
                decoder = Decoder(
                    transactions,
                    run.layout,
                    replace(_OPTIONS, columns=self._columns(run.layout, policed)),
                    DecodeStats(),
                )
            done = 0
            while done < len(run):
                batch, count = decoder.decode(run.slice(done, len(run)))
                at = event_offsets(run.slice(done, done + count), transactions, batch)
                done += count
                chosen = self._chosen(batch)
                if chosen is not None:
                    batch, at = batch.filter(chosen), at[chosen.to_numpy(zero_copy_only=False)]
                if len(batch):
                    yield Rows(table, applied(policed, batch), key_names, at)

    def _columns(self, layout: TableLayout, policed: ColumnPolicies | None) -> list[str]:
        """Returns the columns to decode."""
        names = decodable(layout)
        for name, kind in layout.shape:
            if kind is None:
                self._say(f"column {name} of {layout.table} has a type that cannot be decoded, and is left out")
        by_key = {name for key in self._choice.keys for name in key.values}
        for name in sorted(by_key - set(names)):
            self._say(f"{layout.table} has no column {name} at this time; its rows are not compared with a key by it")
        needed = set(names) if policed is None else by_key | set(policed.sources)
        return [name for name in names if name in needed]

    def _chosen(self, batch: pa.RecordBatch) -> pa.BooleanArray | None:
        """Returns which rows are wanted; None: all."""
        chosen: pa.BooleanArray | None = None
        if self._choice.operations is not None:
            numbers = [number for number, word in enumerate(OPERATIONS) if word in self._choice.operations]
            chosen = pc.is_in(batch.column(0), pa.array(numbers, pa.int8()))
        if self._choice.keys:
            has_key = pa.repeat(False, len(batch))
            for key in self._choice.keys:
                if all(name in batch.schema.names for name in key.values):
                    has_key = pc.or_(has_key, pc.or_(*matches(batch, key)))
            chosen = has_key if chosen is None else pc.and_(chosen, has_key)
        return chosen

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._remark(text)


def _key_names(layout: TableLayout, keys: Sequence[str] | None, policed: ColumnPolicies | None) -> tuple[str, ...]:
    """Returns the columns that identify a row, as they are shown; ``keys``: those of the configuration."""
    if policed is None:
        shown = {column.name.lower(): column.name for column in layout.columns}
    else:
        shown = {column.source.name.lower(): column.field.name for column in policed.columns}
    names = [name.lower() for name in layout.primary_key or keys or ()]
    return tuple(shown[name] for name in names if name in shown)


def merged(streams: list[Iterator[tuple[Longs, pa.Array, Longs]]]) -> Iterator[tuple[pa.Array, Longs]]:
    """Merges streams of (offset of the event, line, seq), each of them in order, into one of lines and their seqs."""
    heads = [(stream, first) for stream in streams if (first := next(stream, None)) is not None]
    while heads:
        frontier = min(int(at[-1]) for _, (at, _, _) in heads)
        parts, rest = [], []
        for stream, (at, lines, seqs) in heads:
            count = int(np.searchsorted(at, frontier, side="right"))
            parts.append((at[:count], lines.slice(0, count), seqs[:count]))
            head = (at[count:], lines.slice(count), seqs[count:]) if count < len(at) else next(stream, None)
            if head is not None:
                rest.append((stream, head))
        heads = rest
        filled = [part for part in parts if len(part[0])]
        if len(filled) == 1:
            yield filled[0][1], filled[0][2]
            continue
        order = np.argsort(np.concatenate([at for at, _, _ in filled]), kind="stable")
        lines = pa.concat_arrays([lines for _, lines, _ in filled])
        yield lines.take(pa.array(order)), np.concatenate([seqs for _, _, seqs in filled])[order]
