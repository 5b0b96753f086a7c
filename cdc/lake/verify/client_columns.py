"""Columns that the server cannot bring into the lake's form, and a client can: hashed ones, and SETs that old servers
print wrongly.

They are read as a snapshot reads them (:mod:`cdc.source.snapshot`), beside the checksum of the other columns that the
server computes. A row's checksum is then made here, in the same form as Spark's: the CRC32 of the decimal text of the
CRC32 of the server's checksum, a comma, and the pieces of these columns, each followed by a comma.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from cdc.base.errors import UnsupportedError
from cdc.lake.verify.columns import ComparedColumn, TableColumns
from cdc.source.connection import query
from cdc.source.snapshot.columns import ColumnStats, ReadColumn, read_array
from cdc.source.snapshot.result_set import ResultSet
from cdc.source.snapshot.table import TableReading

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.config import DestinationConfig
    from cdc.source.server import Connection


class ReadRows(NamedTuple):
    """Some rows of the source."""

    first: list[str]
    """The value of an expression of the caller's, as text."""
    checksums: list[int]
    values: list[dict[str, str | None]]
    """The columns that were read, by their names in Delta; empty unless they were asked for."""


@dataclass(frozen=True)
class ClientColumns:
    """Reads the rows of a table with such columns."""

    reading: TableReading
    columns: tuple[ComparedColumn, ...]
    checksum: str
    """SQL of the checksum of the other columns."""

    @classmethod
    def of(
        cls, config: DestinationConfig, table: tuple[str, str], schema: TableSchema, columns: TableColumns, *,
        has_row_metadata: bool,
    ) -> ClientColumns:  # fmt: skip
        """Prepares the reading. Raises ConfigError if the key of ``hash`` cannot be read, UnsupportedTypeError."""
        whole = TableReading.of(config, *table, schema, has_row_metadata=has_row_metadata)
        names = {column.source for column in columns.read}
        policed = tuple(column for column in whole.policed.columns if column.source.name in names)
        reading = replace(whole, policed=replace(whole.policed, columns=policed))
        return cls(reading, columns.read, columns.checksum)

    def rows(self, conn: Connection, first: str, condition: str, *, values: bool = False) -> Iterator[ReadRows]:
        """Yields the rows that fulfil a condition, some at a time. ``first``: an expression to be selected with them.

        Raises UnsupportedError for a row that is larger than the server's ``max_allowed_packet``.
        """
        reading, stats = self.reading, ColumnStats()
        leading = [ReadColumn(name, name, "bytes", pa.string()) for name in ("first", "checksum")]
        chosen = ", ".join([first, self.checksum, *(column.select for column in reading.columns)])
        query(conn, "SET SESSION character_set_results = NULL")
        for block in ResultSet(conn, f"SELECT {chosen} FROM {reading.quoted_name} WHERE {condition}"):  # noqa: S608
            leading_values, checksums = (
                read_array(reading.table, column, block.cells(at), stats) for at, column in enumerate(leading)
            )
            if leading_values.null_count or checksums.null_count:
                raise UnsupportedError(
                    "a row is larger than the server's max_allowed_packet, so its checksum cannot be computed",
                    place=f"table {reading.table}",
                    remedy="Raise max_allowed_packet on the source.",
                )
            read = reading.batch(block, len(leading), stats)
            texts = pc.binary_join_element_wise(
                checksums, *(piece(read.column(column.lake)) for column in self.columns), "", ","
            )
            sums = [crc32(b"%d" % crc32(text)) for text in texts.cast(pa.binary()).to_pylist()]
            yield ReadRows(leading_values.to_pylist(), sums, read.to_pylist() if values else [])
        query(conn, "SET SESSION character_set_results = utf8mb4")


def piece(array: pa.StringArray) -> pa.StringArray:
    """Returns the pieces of a column of kind ``text``."""
    lengths = pc.binary_length(array).cast(pa.string())
    return pc.fill_null(pc.binary_join_element_wise(lengths, array, ":"), "")


def piece_of(value: str | None) -> str:
    """Returns the piece of one value."""
    return "" if value is None else f"{len(value.encode())}:{value}"
