"""What a reader of a stream gets: transactions, with the changes of rows and the statements in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, overload

from cdc.decode.jsonl import OPERATIONS

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc.streaming.decoder import DecodedBatch, RowsOfTable
    from cdc.streaming.reader import Reader

Operation = Literal["insert", "update", "delete", "ddl"]
Row = dict[str, Any]


class Change:
    """The change of one row."""

    __slots__ = ("_at", "_rows")

    sql: None = None
    """Only a :class:`Statement` has one."""

    def __init__(self, rows: RowsOfTable, at: int) -> None:
        self._rows, self._at = rows, at

    @property
    def schema(self) -> str:
        """The database."""
        return self._rows.schema

    @property
    def table(self) -> str:
        """The table's name, without the database."""
        return self._rows.table

    @property
    def op(self) -> Operation:
        """``insert``, ``update`` or ``delete``."""
        operation: Operation = OPERATIONS[self._rows.operations[self._at]]  # type: ignore[assignment]
        return operation

    @property
    def before(self) -> Row | None:
        """The row before the change, by the names of its columns; None for an insert. Each call makes a new dict."""
        rows = self._rows
        old = None if rows.old is None else rows.old[self._at]
        return None if old is None else dict(zip(rows.names, old, strict=True))

    @property
    def after(self) -> Row | None:
        """The row after the change, by the names of its columns; None for a delete. Each call makes a new dict."""
        rows, at = self._rows, self._at
        return dict(zip(rows.names, rows.new[at], strict=True)) if rows.operations[at] else None

    def __repr__(self) -> str:
        return f"<{self.op} {self.schema}.{self.table} before={self.before} after={self.after}>"


class Statement:
    """A statement that defines or empties tables (DDL)."""

    __slots__ = ("schema", "sql", "table", "tables")

    op: Operation = "ddl"
    before: None = None
    after: None = None

    def __init__(self, schema: str, sql: str, tables: tuple[tuple[str, str], ...]) -> None:
        self.schema = tables[0][0] if tables else schema
        """The database of the first table that it names; without one, the default database of its session."""
        self.table = tables[0][1] if tables else None
        """The first table that it names; None if it names none."""
        self.tables = tables
        """All tables that it names, as (database, table)."""
        self.sql = sql
        """The statement's text."""

    def __repr__(self) -> str:
        return f"<ddl {self.sql!r}>"


class Changes(Sequence["Change | Statement"]):
    """The changes of a transaction, in the order in which they happened.

    Those of a large transaction are decoded some megabytes at a time while they are iterated, and anew in each
    iteration; asking for one by its number, or for their number, iterates them.
    """

    __slots__ = ("_batch", "_number")

    def __init__(self, batch: DecodedBatch, number: int) -> None:
        self._batch, self._number = batch, number

    def __iter__(self) -> Iterator[Change | Statement]:
        return self._batch.changes(self._number)

    def __len__(self) -> int:
        return self._batch.count(self._number)

    @overload
    def __getitem__(self, at: int) -> Change | Statement: ...
    @overload
    def __getitem__(self, at: slice) -> list[Change | Statement]: ...
    def __getitem__(self, at: int | slice) -> Change | Statement | list[Change | Statement]:
        return list(self)[at]

    def __repr__(self) -> str:
        return f"<{len(self)} changes>"


class Transaction:
    """A whole transaction of the source."""

    __slots__ = ("_batch", "_number", "_reader")

    def __init__(self, reader: Reader, batch: DecodedBatch, number: int) -> None:
        self._reader, self._batch, self._number = reader, batch, number

    @property
    def seq(self) -> int:
        """The transaction's number: it only grows, and is the same whenever the transaction is read."""
        return self._batch.seqs[self._number]

    @property
    def gtid(self) -> str | None:
        """The GTID as the server prints it; None if the server gives none."""
        return self._batch.gtids[self._number]

    @property
    def file(self) -> str:
        """The source's binlog file."""
        return self._batch.file

    @property
    def position(self) -> int:
        """The offset in :attr:`file` at which the transaction ends."""
        return self._batch.position(self._number)

    @property
    def commit_time(self) -> datetime:
        """When it was committed, in UTC, by the source's clock."""
        return self._batch.commit_time(self._number)

    @property
    def server_id(self) -> int:
        """The id of the server that wrote :attr:`file`."""
        return self._batch.server_id

    @property
    def size_bytes(self) -> int:
        """The size of its events."""
        return self._batch.size_bytes(self._number)

    @property
    def is_ddl(self) -> bool:
        """Whether it has a statement that defines or empties tables."""
        return self._batch.is_ddl(self._number)

    @property
    def changes(self) -> Changes:
        """The changes of captured tables, in the order in which they happened."""
        return Changes(self._batch, self._number)

    def tables(self) -> dict[str, pa.Table]:
        """Returns the changes as Arrow tables, by ``db.table``: without Python objects, and so many times as fast.

        The columns are those of ``cdc decode --images both``: ``_op`` (0 delete, 1 insert, 2 update), ``_seq``,
        ``_row``, ``_commit_time``, ``_gtid``, the table's columns, and ``_before``, a struct of the old row. A table
        that the transaction alters has the columns of both; a transaction is decoded as a whole.
        """
        return self._batch.arrow(self._number)

    def ack(self) -> None:
        """Acks this transaction and all before it: they never come again, not even if the program is killed now.

        Acking twice does nothing. Raises BatchError if the transaction was rolled back and has not come again;
        StorageError.
        """
        self._reader.ack(self)

    def rollback(self) -> None:
        """Makes this transaction and all after it come again, this one next. Raises BatchError if it was acked."""
        self._reader.rollback(self)

    def __repr__(self) -> str:
        return f"<transaction {self.gtid or self.seq} ending at {self.file}:{self.position}>"
