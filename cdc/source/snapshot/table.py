"""One table as it is read: its columns with the user's policies, its key, and the SQL of its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from cdc.base.errors import UnsupportedError
from cdc.binlog.sql.schemas import TableSchema
from cdc.config import DestinationConfig
from cdc.config.secrets import hash_key
from cdc.decode.column_types import ValuePolicies
from cdc.decode.policies import KEEP, ColumnPolicies, SourceColumn, police, policy_label, value_policies
from cdc.source.connection import quoted
from cdc.source.snapshot.columns import ColumnStats, ReadColumn, read_array, read_column
from cdc.source.snapshot.keys import Key, PagingKey
from cdc.source.snapshot.records import ChunkRange
from cdc.source.snapshot.result_set import RowBlock
from cdc.source.snapshot.wire import WireColumn
from cdc.source.table_checks import METADATA_COLUMNS


@dataclass(frozen=True)
class TableReading:
    """The rules by which a table's rows are selected, converted and changed by policies."""

    db: str
    name: str
    schema: TableSchema
    key: tuple[str, ...]
    """The source's names of the columns that identify a row; empty: none."""
    values: ValuePolicies
    policed: ColumnPolicies
    labels: dict[str, str]
    """The column policies, by the source's name in lower case."""
    has_row_metadata: bool = True
    """The attribute of :class:`~cdc.source.server.ServerInfo`."""
    condition: str | None = None
    """SQL by which the server chooses rows; None: all of them."""

    @classmethod
    def of(
        cls, config: DestinationConfig, db: str, name: str, schema: TableSchema, *, has_row_metadata: bool = True
    ) -> TableReading:
        """Reads the policies of the configuration. Raises UnsupportedTypeError, UnsupportedError, ConfigError."""
        table = f"{db}.{name}"
        apply = config.table_apply(table)
        names = [column.name for column in schema.columns]
        for candidate in names:
            if candidate.lower() in METADATA_COLUMNS:
                raise UnsupportedError(
                    f"the column {candidate} has a name that Towpath uses itself",
                    place=f"table {table}",
                    remedy="Rename it on the source, or exclude the table.",
                )
        by_lower_name = {column_name.lower(): column_name for column_name in names}
        configured = (
            () if apply.mode == "append" else tuple(by_lower_name.get(key.lower(), key) for key in apply.keys or ())
        )
        key = schema.primary_key or configured
        values = value_policies(apply)
        if apply.mode != "append":
            values = replace(values, exact=tuple(column_name.lower() for column_name in key))
        secret = hash_key(apply) if any(policy.kind == "hash" for policy in apply.columns.values()) else None
        columns, labels = [], {}
        for column in schema.columns:
            policy = apply.columns.get(column.name.lower(), KEEP)
            if label := policy_label(policy, secret):
                labels[column.name.lower()] = label
            if policy.kind == "drop":
                continue
            read = read_column(table, column, values)
            policed = police(table, SourceColumn(column.name, read.arrow, read.digits), policy)
            assert policed is not None  # only a dropped column has none
            columns.append(policed)
        return cls(db, name, schema, key, values, ColumnPolicies(tuple(columns), secret), labels, has_row_metadata)

    def only(self, names: Sequence[str] | None) -> TableReading:
        """Returns the reading of the key and these columns of the source; None: of all columns."""
        if names is None:
            return self
        chosen = {name.lower() for name in (*self.key, *names)}
        columns = tuple(column for column in self.policed.columns if column.source.name.lower() in chosen)
        return replace(self, policed=replace(self.policed, columns=columns))

    @property
    def table(self) -> str:
        """``db.table``."""
        return f"{self.db}.{self.name}"

    @cached_property
    def columns(self) -> tuple[ReadColumn, ...]:
        """The columns that are read and stay."""
        sources = self.policed.sources
        return tuple(
            read_column(self.table, column, self.values, has_row_metadata=self.has_row_metadata)
            for column in self.schema.columns
            if column.name in sources
        )

    @property
    def arrow_schema(self) -> pa.Schema:
        """The columns in the files: as they are in the lake, JSON as text."""
        return pa.schema(self.policed.fields)

    def settings(self) -> dict[str, Any]:
        """The policies as ``snapshot.json`` keeps them."""
        values = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self.values).items()}
        return {"policies": self.labels, "values": values}

    def may_show_keys(self, names: Sequence[str]) -> bool:
        """Whether the values of these columns may lie in files: not if a policy hides one of them."""
        return not any(self.labels.get(name.lower(), "").startswith(("hash", "mask", "drop", "null")) for name in names)

    # --- SQL

    @property
    def quoted_name(self) -> str:
        return f"{quoted(self.db)}.{quoted(self.name)}"

    def select(self, chunk: ChunkRange, paging: PagingKey | None) -> str:
        """Returns the query for a chunk. The key's columns come first if it ends after a number of rows."""
        expressions = [column.select for column in self.columns]
        if chunk.limit is not None and paging is not None:
            expressions = [*map(quoted, paging.names), *expressions]
        hint = "" if paging is None else f" FORCE INDEX ({quoted(paging.index)})"
        chosen = ", ".join(expressions) or "1"
        text = f"SELECT {chosen} FROM {self.quoted_name}{hint}"  # noqa: S608 - quoted names
        if paging is None:
            return text if self.condition is None else f"{text} WHERE {self.condition}"
        text += where(paging, chunk.after, chunk.upto, self.condition) + f" ORDER BY {paging.order}"
        return text if chunk.limit is None else f"{text} LIMIT {int(chunk.limit)}"

    def can_read(self, wire: Sequence[WireColumn], skip: int = 0) -> bool:
        """Whether rows in binary form can be read, without their first ``skip`` columns, that the server describes
        so."""
        read = wire[skip:]
        return len(read) == len(self.columns) and all(map(ReadColumn.can_read, self.columns, read))

    def batch(self, block: RowBlock, skip: int, stats: ColumnStats) -> pa.RecordBatch:
        """Converts rows, without their first ``skip`` columns, and applies the policies."""
        arrays = [
            read_array(self.table, column, block.cells(skip + number), stats)
            for number, column in enumerate(self.columns)
        ]
        if not self.columns:
            return pa.RecordBatch.from_arrays(
                [pa.nulls(block.rows, field.type) for field in self.policed.fields], schema=self.arrow_schema
            )
        fields = [pa.field(column.name, column.arrow) for column in self.columns]
        policed = self.policed.apply(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
        return policed.cast(self.arrow_schema) if policed.schema != self.arrow_schema else policed


def where(paging: PagingKey, after: Key | None, upto: Key | None, condition: str | None = None) -> str:
    """Returns the WHERE clause of a range of keys, whose rows also fulfil ``condition``; empty for the whole table."""
    conditions = [] if condition is None else [f"({condition})"]
    if after is not None:
        conditions.append(paging.after(after))
    if upto is not None:
        conditions.append(paging.upto(upto))
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""
