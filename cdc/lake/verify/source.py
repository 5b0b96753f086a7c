"""The source's side: a consistent snapshot at a known position, and checksums and rows in it.

The positions are those of a chunk of a snapshot (:mod:`cdc.source.snapshot.positions`): which transactions between the
two are in it is not known; on MariaDB there are none. ``docs/decisions/0060`` has the reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pymysql

from cdc.base.closing import Closing
from cdc.base.errors import CdcError, IdentityError, UnsupportedError
from cdc.base.patterns import exact
from cdc.binlog.positions import BinlogPosition, make_seq
from cdc.config import TablesConfig
from cdc.lake.verify.buckets import Buckets, find_buckets
from cdc.lake.verify.client_columns import ClientColumns, piece_of
from cdc.lake.verify.columns import TableColumns, is_plain_key, quoted
from cdc.lake.verify.compare import BucketSum, ShownRow
from cdc.source.connection import connect, mapped, place_of, query
from cdc.source.history import executed_gtids
from cdc.source.schemas import read_schemas
from cdc.source.server import ServerInfo, current_position, describe
from cdc.source.snapshot import positions
from cdc.source.snapshot.positions import Marks

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.config import DestinationConfig, SourceConfig
    from cdc.meta import SourceIdentity

_READ_TIMEOUT_S = 6 * 3600
"""Longest wait for the first row of a statement that reads a whole table."""
_SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    # The modes of the server must not change what dates and paddings look like.
    "SET SESSION sql_mode = ''",
)
_FETCHED = 10_000
_EXACT_ROWS = 1 << 21
"""So many checksums of 32 bits may exceed what a DOUBLE holds exactly."""


@dataclass(frozen=True)
class SnapshotPosition:
    """The position of a snapshot, as far as the server tells it."""

    marks: Marks
    """No transaction after ``high`` is in it; those up to ``low`` are, see :mod:`cdc.source.snapshot.positions`."""
    gtids_before: str | None = None
    """GTIDs that were executed before. MySQL: a set; None if the server has no GTIDs. MariaDB: the last number of each
    domain."""
    clock_us: int = 0
    """The server's clock after the snapshot was taken, µs since 1970."""

    @property
    def high(self) -> BinlogPosition:
        return self.marks.high

    @property
    def is_exact(self) -> bool:
        """Whether all transactions up to ``high`` are in it."""
        return self.marks.low.method == "exact"


class SourceSnapshot(Closing):
    """A transaction that sees the source as it was at one moment. Use it as a context."""

    def __init__(self, config: DestinationConfig, identity: SourceIdentity) -> None:
        """Connects and takes the snapshot. Raises SourceUnavailableError, SourceRefusedError; IdentityError if the
        server is not the one that was captured."""
        config = config.at_server(identity.address)
        self._identity, self._config = identity, config
        self._client: ClientColumns | None = None
        self._conn = connect(config.source, read_timeout=_READ_TIMEOUT_S)
        try:
            self.info: ServerInfo = describe(self._conn)
            self._require_same(config.source)
            for statement in (*_SETTINGS, *_no_time_limit(self.info)):
                query(self._conn, statement)
            self.position = self._begin()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the transaction and the connection."""
        if self._conn.open:
            with suppress(pymysql.err.Error, OSError):
                self._conn.close()

    def cancel(self) -> None:
        """Ends a statement that another thread waits for; it fails there."""
        with suppress(CdcError), closing(connect(self._config.source)) as other:
            query(other, f"KILL {self._conn.thread_id()}")  # type: ignore[no-untyped-call]

    @property
    def high_seq(self) -> int:
        """The seq of :attr:`SnapshotPosition.high`."""
        return make_seq(self._identity.epoch, self.position.high.file_number, self.position.high.pos)

    @property
    def is_old_mysql(self) -> bool:
        """Whether the server is a MySQL before 8.0."""
        return self.info.flavor == "mysql" and self.info.version_info < (8,)

    def _require_same(self, source: SourceConfig) -> None:
        if self.info.server_uuid != self._identity.server_uuid:
            raise IdentityError(
                f"the server is {self.info.server_uuid}, and the store was captured from {self._identity.server_uuid}",
                place=f"source {place_of(source)}",
                remedy="Correct source.url.",
            )

    def _begin(self) -> SnapshotPosition:
        before = self._gtids()
        marks = positions.begin(self._conn, positions.method_of(self._conn, self.info))
        return SnapshotPosition(marks, before, self._clock())

    def _gtids(self) -> str | None:
        if self.info.flavor == "mariadb":
            return str(query(self._conn, "SELECT @@gtid_binlog_pos AS gtids")[0]["gtids"] or "")
        return executed_gtids(self._conn, self.info.flavor)

    def _clock(self) -> int:
        row = query(self._conn, "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED) AS us")[0]
        return int(row["us"])

    def executed(self) -> str | None:
        """Returns the GTIDs that the server has executed by now; None without GTIDs."""
        return executed_gtids(self._conn, self.info.flavor)

    def has_later_position(self) -> bool:
        """Whether the server's binlog has grown since the snapshot was taken."""
        return current_position(self._conn) != self.position.high

    # --- tables

    def prepare(self, db: str, table: str, schema: TableSchema, columns: TableColumns) -> None:
        """Call it before the rows of a table are read. Raises ConfigError if the key of ``hash`` cannot be read."""
        self._client = None
        if columns.read:
            self._client = ClientColumns.of(
                self._config, (db, table), schema, columns, has_row_metadata=self.info.has_row_metadata
            )

    def buckets(
        self, db: str, table: str, schema: TableSchema, columns: TableColumns, rows_a_range: int | None = None
    ) -> Buckets:
        """Returns how the rows of a table are distributed over buckets, as :func:`find_buckets`."""
        return find_buckets(self._conn, (db, table), schema, columns, rows_a_range)

    def require_transactional(self, db: str, table: str) -> None:
        """Raises UnsupportedError for a table of an engine without consistent snapshots, if the server writes now."""
        facts = query(
            self._conn,
            "SELECT t.ENGINE AS engine, e.TRANSACTIONS AS transactions FROM information_schema.TABLES t "
            "LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE "
            "WHERE t.TABLE_SCHEMA = %s AND t.TABLE_NAME = %s",
            (db, table),
        )
        if facts and str(facts[0]["transactions"]).upper() != "YES" and self.has_later_position():
            raise UnsupportedError(
                f"the table's engine {facts[0]['engine']} has no consistent snapshots, and the source was written to "
                "meanwhile",
                place=f"table {db}.{table}",
                remedy="Verify it while nothing is written, or change its engine to InnoDB.",
            )

    def sums(self, db: str, table: str, columns: TableColumns, buckets: Buckets) -> dict[int, BucketSum]:
        """Returns the checksums of all buckets of a table, which is read once."""
        if self._client is not None:
            return self._read_sums(self._client, columns, buckets)
        if buckets.is_ranges:
            range_sums = (
                (bucket, self._range_sum(db, table, columns, buckets, bucket)) for bucket in range(buckets.count)
            )
            return {bucket: total for bucket, total in range_sums if total.rows}
        sums: dict[int, BucketSum] = {}
        for sql in _sums_of(columns):
            # By number: GROUP BY takes a name for the table's column before it takes it for an alias.
            rows = self._query(
                f"SELECT {buckets.number(columns)} AS b, COUNT(*) AS n, SUM({sql}) AS s "  # noqa: S608
                f"FROM {quoted(db)}.{quoted(table)} GROUP BY 1"
            )
            sums = {int(row["b"]): BucketSum(int(row["n"]), int(row["s"] or 0)) for row in rows}
            if all(total.rows < _EXACT_ROWS for total in sums.values()):
                break
        return sums

    def _read_sums(self, client: ClientColumns, columns: TableColumns, buckets: Buckets) -> dict[int, BucketSum]:
        rows: Counter[int] = Counter()
        totals: Counter[int] = Counter()
        for block in client.rows(self._conn, buckets.number(columns), "TRUE"):
            numbers = [int(number) for number in block.first]
            rows.update(numbers)
            for number, checksum in zip(numbers, block.checksums, strict=True):
                totals[number] += checksum
        return {number: BucketSum(count, totals[number]) for number, count in rows.items()}

    def _range_sum(self, db: str, table: str, columns: TableColumns, buckets: Buckets, number: int) -> BucketSum:
        for sql in _sums_of(columns):
            row = self._query(
                f"SELECT COUNT(*) AS n, SUM({sql}) AS s "  # noqa: S608
                f"FROM {quoted(db)}.{quoted(table)} FORCE INDEX (PRIMARY) WHERE {buckets.condition(columns, [number])}"
            )[0]
            if int(row["n"]) < _EXACT_ROWS:
                break
        return BucketSum(int(row["n"]), int(row["s"] or 0))

    def rows(
        self,
        db: str,
        table: str,
        columns: TableColumns,
        buckets: Buckets,
        numbers: Iterable[int],
        keys: Sequence[str] | None = None,
    ) -> Iterator[tuple[str, int]]:
        """Yields the canonical key and the checksum of each row in these buckets, or of those with these keys.

        Raises UnsupportedError for a row that is larger than the server's ``max_allowed_packet``.
        """
        if self._client is not None:
            for block in self._client.rows(self._conn, columns.key, _condition(columns, buckets, numbers, keys)):
                yield from zip(block.first, block.checksums, strict=True)
            return
        statement = (
            f"SELECT {columns.key} AS k, {columns.checksum} AS c FROM {quoted(db)}.{quoted(table)} "  # noqa: S608
            f"WHERE {_condition(columns, buckets, numbers, keys)}"
        )
        for key, checksum in self._stream(statement):
            if key is None or checksum is None:
                raise UnsupportedError(
                    "a row is larger than the server's max_allowed_packet, so its checksum cannot be computed",
                    place=f"table {db}.{table}",
                    remedy="Raise max_allowed_packet on the source.",
                )
            yield _text(key), int(checksum)

    def shown(
        self, db: str, table: str, columns: TableColumns, buckets: Buckets, numbers: Iterable[int], keys: Sequence[str]
    ) -> Iterator[ShownRow]:
        """Yields the rows with these canonical keys, which lie in these buckets, with their values."""
        values = ", ".join(f"{column.piece}, {column.shown}" for column in columns.compared)
        names = [column.lake for column in columns.compared]
        statement = (
            f"SELECT {columns.key}, {columns.checksum}, {values} FROM {quoted(db)}.{quoted(table)} "  # noqa: S608
            f"WHERE {_condition(columns, buckets, numbers, keys)}"
        )
        others: dict[str, list[tuple[int, dict[str, str | None]]]] = {}
        if self._client is not None:
            condition = _condition(columns, buckets, numbers, keys)
            for block in self._client.rows(self._conn, columns.key, condition, values=True):
                for key, checksum, read in zip(*block, strict=True):
                    others.setdefault(key, []).append((checksum, read))
        for found_key, found_checksum, *texts in self._stream(statement):
            key, checksum = _text(found_key), int(found_checksum)
            pairs = zip(map(_text, texts[::2]), map(_value, texts[1::2]), strict=True)
            shown = dict(zip(names, pairs, strict=True))
            if key in others:
                checksum, read = others[key].pop()
                shown |= {name: (piece_of(value), value) for name, value in read.items()}
            yield ShownRow(key, checksum, shown)

    def _query(self, statement: str) -> list[dict[str, Any]]:
        return query(self._conn, statement)

    def _stream(self, statement: str) -> Iterator[tuple[Any, ...]]:
        with mapped(self._conn), self._conn.cursor(pymysql.cursors.SSCursor) as cursor:
            cursor.execute(statement)
            while rows := cursor.fetchmany(_FETCHED):
                yield from rows

    def schemas(self, config: DestinationConfig) -> dict[str, TableSchema]:
        """Returns the definitions of the included tables."""
        return read_schemas(self._conn, config.tables).tables

    def schema(self, db: str, table: str, config: DestinationConfig) -> TableSchema | None:
        """Returns the definition of a table; None if there is no such table."""
        name = exact(f"{db}.{table}")
        override = config.tables.override(f"{db}.{table}")
        overrides = {} if override is None else {f"{db}.{table}": override}
        setting = config.tables.lower_case_table_names
        only = TablesConfig(include=(name,), overrides=overrides, lower_case_table_names=setting)
        return read_schemas(self._conn, only).tables.get(f"{db}.{table}")


def _sums_of(columns: TableColumns) -> tuple[str, str]:
    """SQL of the numbers that are summed up: DOUBLEs, and DECIMALs for buckets of too many rows. A sum of DOUBLEs takes
    the server half the time, and is exact up to 2^53."""
    return f"{columns.checksum} + 0e0", columns.checksum


def _condition(
    columns: TableColumns, buckets: Buckets, bucket_numbers: Iterable[int], keys: Sequence[str] | None
) -> str:
    """SQL that is true for the rows in these buckets, and with these canonical keys."""
    in_buckets = buckets.condition(columns, bucket_numbers)
    if keys is None:
        return in_buckets
    if is_plain_key(columns.keys):  # the server looks them up
        numbers = [key.rstrip(",") for key in keys]
        listed = ", ".join(number for number in numbers if number)
        by_number = f"{columns.keys[0].value} IN ({listed})" if listed else "FALSE"
        return by_number if all(numbers) else f"({by_number} OR {columns.keys[0].value} IS NULL)"
    listed = ", ".join(f"X'{key.encode().hex()}'" for key in keys)
    return f"{in_buckets} AND CAST({columns.key} AS BINARY) IN ({listed})"


def _no_time_limit(info: ServerInfo) -> Iterable[str]:
    if info.flavor == "mariadb":
        return ("SET SESSION max_statement_time = 0",)
    return ("SET SESSION max_execution_time = 0",) if info.version_info >= (5, 7, 8) else ()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _value(value: Any) -> str | None:
    return None if value is None else _text(value)
