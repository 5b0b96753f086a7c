"""Decodes batches of transactions: many small ones at once, a large one piece by piece.

Each table is decoded by itself, and a row's place is the offset of its row event, which orders the rows of all tables.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.binlog.entry import ENTRY, Entries, EntryFlag
from cdc.binlog.events import parse_format_description
from cdc.binlog.positions import MAX_OFFSET
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.binlog.sql.statements import classify
from cdc.decode.layout import BEFORE, METADATA_FIELDS, TableLayout
from cdc.decode.reader import DecodeOptions, Decoder, DecodeStats
from cdc.decode.row_events import event_offsets
from cdc.decode.scan import table_events
from cdc.decode.transactions import NO_HISTORY, TableHistory, Transactions, gtid_strings
from cdc.event_store import transaction as stored
from cdc.store.formats.layout import schema_files, schemas_folder
from cdc.store.formats.state import TableNumbers
from cdc.streaming.changes import Change, Statement
from cdc.streaming.values import POLICIES, to_list

Longs = npt.NDArray[np.int64]

_OPTIONS = DecodeOptions(images="both", policies=POLICIES)
PIECE_BYTES = 8 << 20
"""Bytes of events above which a transaction is decoded piece by piece, and the size of a piece."""
_DELETE, _INSERT = 0, 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RowsOfTable:
    """Decoded rows of one table and one layout. Python objects are made of all of them when one is asked for."""

    def __init__(self, layout: TableLayout, batch: pa.RecordBatch, at: Longs) -> None:
        self.schema, _, self.table = layout.table.partition(".")
        self.batch = batch
        self.at = at
        """The offset of each row's event."""
        self._layout = layout

    def __len__(self) -> int:
        return len(self.batch)

    def slice(self, first: int, stop: int) -> RowsOfTable:
        """Returns the rows from ``first`` to before ``stop``."""
        return RowsOfTable(self._layout, self.batch.slice(first, stop - first), self.at[first:stop])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self._layout.columns)

    @cached_property
    def operations(self) -> list[int]:
        """0 delete, 1 insert, 2 update."""
        operations: list[int] = self.batch.column(0).to_numpy().tolist()
        return operations

    @cached_property
    def new(self) -> list[tuple[Any, ...]]:
        """The new rows; the old ones of deletes."""
        first = len(METADATA_FIELDS)
        arrays = self.batch.columns[first : first + len(self.names)]
        return _rows(arrays, self._layout, len(self.batch))

    @cached_property
    def old(self) -> list[tuple[Any, ...] | None] | None:
        """The old rows, None in the place of an insert's; None if all are inserts."""
        operations = self.batch.column(0).to_numpy()
        inserts = operations == _INSERT
        if inserts.all():
            return None
        if (operations == _DELETE).all():
            return list(self.new)
        before = self.batch.column(BEFORE)
        arrays = [before.field(number) for number in range(before.type.num_fields)]
        rows: list[tuple[Any, ...] | None] = list(_rows(arrays, self._layout, len(self.batch)))
        for at in np.flatnonzero(inserts).tolist():
            rows[at] = None
        return rows


def _rows(arrays: Sequence[pa.Array], layout: TableLayout, count: int) -> list[tuple[Any, ...]]:
    if not arrays:
        return [()] * count
    return list(zip(*map(to_list, arrays, layout.columns), strict=True))


class _Order(NamedTuple):
    """The rows of all tables in the order of their events."""

    parts: list[RowsOfTable]
    part: list[int]
    """The number of the part that has each row; empty if there is only one part."""
    row: list[int]
    """The number of each row in its part; empty if there is only one part."""
    at: Longs
    """The offset of each row's event."""

    @classmethod
    def of(cls, parts: list[RowsOfTable]) -> _Order:
        if len(parts) == 1:
            return cls(parts, [], [], parts[0].at)
        if not parts:
            return cls(parts, [], [], np.empty(0, np.int64))
        at = np.concatenate([part.at for part in parts])
        order = np.argsort(at, kind="stable")
        number = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        row = np.concatenate([np.arange(len(part)) for part in parts])
        return cls(parts, number[order].tolist(), row[order].tolist(), at[order])

    def changes(self, first: int, stop: int) -> Iterator[Change]:
        if not self.parts:
            return iter(())
        if not self.part:
            part = self.parts[0]
            return (Change(part, at) for at in range(first, stop))
        parts = self.parts
        chosen = zip(self.part[first:stop], self.row[first:stop], strict=True)
        return (Change(parts[number], at) for number, at in chosen)


class DecodedBatch:
    """Consecutive transactions of one binlog file, decoded when they are asked for."""

    def __init__(
        self, transactions: Transactions, file: str, server_id: int, tables: dict[str, int], folder: Path
    ) -> None:
        """``tables``: those that may have rows, with their bits in table masks. ``folder``: a store's, with the
        definitions of tables."""
        self._transactions = transactions
        self._tables = tables
        self._folder = folder
        self.file, self.server_id = file, server_id
        self.seqs: list[int] = transactions.entries["seq"].astype(np.int64).tolist()
        self._ddl: list[bool] = ((transactions.entries["flags"] & int(EntryFlag.DDL)) != 0).tolist()

    def __len__(self) -> int:
        return len(self.seqs)

    @property
    def _entries(self) -> Entries:
        return self._transactions.entries

    @cached_property
    def gtids(self) -> list[str | None]:
        texts: list[str | None] = gtid_strings(self._entries).to_pylist()
        return texts

    def position(self, number: int) -> int:
        return self.seqs[number] & MAX_OFFSET

    def commit_time(self, number: int) -> datetime:
        return _EPOCH + timedelta(microseconds=int(self._entries["commit_time_us"][number]))

    def size_bytes(self, number: int) -> int:
        return int(self._entries["length"][number])

    def is_ddl(self, number: int) -> bool:
        return self._ddl[number]

    @cached_property
    def is_large(self) -> bool:
        """Whether this is one transaction that is decoded piece by piece."""
        return len(self) == 1 and int(self._entries["length"][0]) > PIECE_BYTES

    def halves(self) -> tuple[DecodedBatch, DecodedBatch]:
        """Returns the first and the second half of several transactions."""
        middle = len(self) // 2
        first, second = (
            DecodedBatch(
                replace(self._transactions, entries=self._entries[cut]),
                self.file,
                self.server_id,
                self._tables,
                self._folder,
            )
            for cut in (slice(0, middle), slice(middle, None))
        )
        return first, second

    def decode(self) -> None:
        """Decodes the rows, unless they are those of a large transaction. Raises DamagedError, UnsupportedError,
        SourceRefusedError (no names of columns)."""
        if not self.is_large:
            _ = self._order

    def changes(self, number: int) -> Iterator[Change | Statement]:
        """Returns the changes of a transaction, in order."""
        if self.is_ddl(number):
            return self._with_statements(number)
        return self._row_changes(number)

    def _row_changes(self, number: int) -> Iterator[Change]:
        if self.is_large:
            return self._streamed()
        first, stop = self._bounds[number]
        return self._order.changes(first, stop)

    def count(self, number: int) -> int:
        """Returns the number of changes of a transaction."""
        if self.is_ddl(number) or self.is_large:
            return sum(1 for _ in self.changes(number))
        first, stop = self._bounds[number]
        return stop - first

    def arrow(self, number: int) -> dict[str, pa.Table]:
        """Returns the changes of a transaction as tables."""
        batches: dict[str, list[pa.RecordBatch]] = {}
        if self.is_large:
            for table in self._tables:
                for part in self._decoded(table, PIECE_BYTES):
                    batches.setdefault(table, []).append(part.batch)
        else:
            begin, end = (int(bound[number]) for bound in self._transactions.bounds())
            for part in self._order.parts:
                first, stop = np.searchsorted(part.at, [begin, end]).tolist()
                if first < stop:
                    name = f"{part.schema}.{part.table}"
                    batches.setdefault(name, []).append(part.batch.slice(first, stop - first))
        tables = {name: [pa.Table.from_batches([batch]) for batch in each] for name, each in batches.items()}
        return {
            name: each[0] if len(each) == 1 else pa.concat_tables(each, promote_options="default")
            for name, each in tables.items()
        }

    @cached_property
    def _order(self) -> _Order:
        return _Order.of([part for table in self._tables for part in self._decoded(table, _OPTIONS.target_bytes)])

    @cached_property
    def _bounds(self) -> list[tuple[int, int]]:
        """The first row of each transaction, and the one behind its last, in the order of all."""
        begin, end = self._transactions.bounds()
        at = self._order.at
        firsts, stops = np.searchsorted(at, begin).tolist(), np.searchsorted(at, end).tolist()
        return list(zip(firsts, stops, strict=True))

    def _streamed(self) -> Iterator[Change]:
        """Yields the rows of a large transaction: of each table some are decoded, and never more are handed out than up
        to the table that has been decoded least far."""
        each = max(1 << 18, PIECE_BYTES // max(1, len(self._tables)))
        streams = [self._decoded(table, each) for table in self._tables]
        heads = [(stream, part) for stream in streams if (part := next(stream, None)) is not None]
        while heads:
            frontier = min(int(part.at[-1]) for _, part in heads)
            ready, rest = [], []
            for stream, part in heads:
                count = int(np.searchsorted(part.at, frontier, side="right"))
                if count:
                    ready.append(part.slice(0, count))
                left = part.slice(count, len(part)) if count < len(part) else next(stream, None)
                if left is not None:
                    rest.append((stream, left))
            heads = rest
            order = _Order.of(ready)
            yield from order.changes(0, len(order.at))

    def _decoded(self, table: str, most_bytes: int) -> Iterator[RowsOfTable]:
        transactions, history = self._transactions.of_tables(self._tables[table]), self._history(table)
        decoder: Decoder | None = None
        for run in table_events(transactions, table, most_bytes, history, POLICIES):
            if decoder is None or decoder.layout is not run.layout:
                decoder = Decoder(transactions, run.layout, _OPTIONS, DecodeStats())
            done = 0
            while done < len(run):
                batch, count = decoder.decode(run.slice(done, len(run)))
                at = event_offsets(run.slice(done, done + count), transactions, batch)
                done += count
                yield RowsOfTable(run.layout, batch, at)

    def _history(self, table: str) -> TableHistory:
        files = schema_files(schemas_folder(self._folder))
        if not files:
            return NO_HISTORY
        seqs = tuple(seq for seq, _ in files)
        first = max(0, bisect_right(seqs, self.seqs[0]) - 1)
        files = files[first : bisect_left(seqs, self.seqs[-1] + 1)] or files[:1]
        return TableHistory(tuple(seq for seq, _ in files), lambda number: _definition(files[number][1], table))

    def _with_statements(self, number: int) -> Iterator[Change | Statement]:
        rows = self._row_changes(number)
        done = 0
        order = None if self.is_large else self._order
        for at, statement in self._statements(number):
            if order is not None:  # rows of a transaction of one of both kinds are rare, and come where they were
                count = int(np.searchsorted(order.at, at)) - self._bounds[number][0] - done
                yield from islice(rows, count)
                done += count
            yield statement
        yield from rows

    def _statements(self, number: int) -> Iterator[tuple[int, Statement]]:
        begin, end = (int(bound[number]) for bound in self._transactions.bounds())
        for at, query in self._transactions.queries(begin, end):
            statement = classify(query.sql, query.db, query.sql_mode)
            if statement.kind == "ddl":
                yield at, Statement(query.db, query.sql, tuple(statement.tables))


class BatchDecoder:
    """Makes batches that can be decoded of what an event store returns."""

    def __init__(self, folder: Path, tables: TableNumbers, place: str, *, verified: bool) -> None:
        """``folder``: a store's, with the definitions of tables. ``place``: the source, for messages. ``verified``:
        whether this process has verified the checksums of all events."""
        self._folder, self._numbers, self._place, self._verified = folder, tables, place, verified

    def batches(self, transactions: Sequence[stored.Transaction]) -> Iterator[DecodedBatch]:
        """Yields the transactions in batches: each has transactions of one binlog file; a large one is alone."""
        group: list[stored.Transaction] = []
        for transaction in transactions:
            is_large = transaction.size_bytes > PIECE_BYTES
            if group and (is_large or transaction.source != group[0].source):
                yield self._batch(group)
                group = []
            group.append(transaction)
            if is_large:
                yield self._batch(group)
                group = []
        if group:
            yield self._batch(group)

    def _batch(self, group: list[stored.Transaction]) -> DecodedBatch:
        data = group[0].data if len(group) == 1 else b"".join([transaction.data for transaction in group])
        entries: Entries = np.frombuffer(
            bytearray(b"".join([transaction.entry.tobytes() for transaction in group])), dtype=ENTRY
        )
        lengths = entries["length"].astype(np.int64)
        entries["offset"] = np.cumsum(lengths) - lengths
        source = group[0].source
        tables = {
            table: 1 << self._numbers.bit(table)
            for table in dict.fromkeys(table for transaction in group for table in transaction.tables)
        }
        description = parse_format_description(source.format_description)
        opened = Transactions(
            f"{self._place}, {source.name}",
            np.frombuffer(data, dtype=np.uint8),
            True,
            entries,
            verified=self._verified,
            writer=description,
        )
        return DecodedBatch(opened, source.name, source.server_id, tables, self._folder)


# --- the definitions of tables


_loaded: dict[Path, tuple[int, Schemas]] = {}


def _definition(path: Path, table: str) -> TableSchema | None:
    changed_ns = path.stat().st_mtime_ns
    loaded = _loaded.get(path)
    if loaded is None or loaded[0] != changed_ns:
        if len(_loaded) > 16:
            _loaded.clear()
        loaded = _loaded[path] = changed_ns, Schemas.load(path)
    return loaded[1].tables.get(table)
