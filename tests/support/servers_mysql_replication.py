"""mysql-replication's answers for the rows of a binlog, and the cases in which it is known to be wrong.

``tests/servers/capture/test_mysql_replication.py`` and ``tests/servers/decode/test_mysql_replication.py`` show each of
these cases on real servers.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import (
    DeleteRowsEvent,
    PartialUpdateRowsEvent,
    UpdateRowsEvent,
    WriteRowsEvent,
)

from cdc.binlog.sql.schemas import ColumnSchema, Schemas, TableSchema
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.versions import lacks

Images = tuple[list[Any] | None, list[Any] | None]
"""Before and after, values in the columns' order."""

_UNICODE = ("utf8", "utf8mb3", "utf8mb4", "ascii")
_SAME_IN_PYTHON = (
    "latin1",
    "latin2",
    "latin5",
    "latin7",
    "cp1250",
    "cp1251",
    "cp1257",
    "koi8r",
    "cp850",
    "cp852",
    "gbk",
)
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")


def peer_stream(server: Server, *, port: int | None = None, **options: Any) -> BinLogStreamReader:
    """Its reader of a server's binlog. ``port``: a proxy before the server, to which it connects without TLS.
    ``options`` are the reader's own."""
    login = {"host": HOST, "port": port or server.port, "user": USER, "password": PASSWORD, "charset": "utf8mb4"}
    if port is not None:
        login["ssl_disabled"] = True
    return BinLogStreamReader(login, server_id=424_242, **options)


def peer_rows(server: Server, file: str, db: str, **options: Any) -> list[dict[str, Any]]:
    """The new row of each insert and update of a database's tables, from the start of a binlog file to the binlog's
    end; an update of its event type for partial updates has the document's change instead of the document."""
    stream = peer_stream(
        server,
        log_file=file,
        log_pos=4,
        resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, PartialUpdateRowsEvent],
        only_schemas=[db],
        **options,
    )
    try:
        return [row["values" if "values" in row else "after_values"] for event in stream for row in event.rows]
    finally:
        stream.close()


def assert_still_wrong(peer: Any, expected: Any, truth: Any) -> None:
    """Asserts that mysql-replication gives ``expected``, which is not ``truth``."""
    assert peer != truth, (
        f"mysql-replication gives the right answer now, {truth!r}: remove this case, and let the tests with random "
        "tables compare it (peer_value_differs)"
    )
    assert peer == expected


def peer_changes(server: Server, file: str, kind: str, schemas: Schemas) -> dict[str, list[Images]]:
    """The changes of the tables that it can read, by ``db.table``."""
    readable = {name: schema for name, schema in schemas.tables.items() if _readable(kind, schema)}
    images: dict[str, list[Images]] = {name: [] for name in readable}
    stream = peer_stream(
        server,
        log_file=file,
        log_pos=4,
        resume_stream=True,
        blocking=False,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_tables=[name.partition(".")[2] for name in readable],
    )
    try:
        for event in stream:
            name = f"{event.schema}.{event.table}"
            if stream.log_file != file:
                break
            if name in images:
                try:
                    images[name] += [_images(event, row) for row in event.rows]
                except UnicodeDecodeError:
                    del images[name]  # it raises at bytes without a meaning
                except ValueError as error:
                    if "day is out of range" not in str(error):
                        raise
                    del images[name]  # it raises at impossible dates
    finally:
        stream.close()
    return images


def _images(event: Any, row: dict[str, Any]) -> Images:
    if isinstance(event, UpdateRowsEvent):
        return list(row["before_values"].values()), list(row["after_values"].values())
    values = list(row["values"].values())
    return (None, values) if isinstance(event, WriteRowsEvent) else (values, None)


def _readable(kind: str, schema: TableSchema) -> bool:
    """Tables where it raises, or loses its place in the row, are left out: those with

    - VECTOR (an unknown field of the metadata) and COMPRESSED (an unknown type),
    - ENUM and SET of MySQL 8.0.12, whose metadata lack a field,
    - JSON of MySQL (it raises at times of more than a day, and gives keys as bytes),
    - times in the storage of MariaDB 5.3 (another size),
    - text that is not what Python has by the name of its character set (it raises), or in MySQL 5.6, where there is no
      metadata, any bytes that are not UTF-8.
    """
    names_members = not lacks(kind, "character sets of members")
    for column in schema.columns:
        whole = column.column_type
        if column.data_type in ("enum", "set") and kind != "mysql56" and not names_members:
            return False
        if column.data_type in ("vector", "json") or "COMPRESSED" in whole or "mariadb-5.3" in whole:
            return False
        decoded = (
            _UNICODE if kind == "mysql56" or column.data_type in ("enum", "set") else (*_UNICODE, *_SAME_IN_PYTHON)
        )
        if column.charset not in (None, *decoded) or (kind == "mysql56" and _is_bytes(column)):
            return False
    return True


def is_geometry(column: ColumnSchema) -> bool:
    """Whether the column is of GEOMETRY or one of its subtypes."""
    names = ("geometry", "point", "linestring", "polygon")
    return column.data_type.removeprefix("multi") in names or column.data_type.startswith("geom")


def _is_bytes(column: ColumnSchema) -> bool:
    return "binary" in column.data_type or "blob" in column.data_type


def peer_value_differs(kind: str, column: ColumnSchema, value: Any, peer: Any) -> bool:
    """Whether its value is another one, where it is not known to be wrong:

    - without metadata (MySQL 5.6): unsigned numbers, ENUM and SET;
    - UUID, INET4, INET6 (raw);
    - YEAR 0, the zero TIMESTAMP, negative TIMEs with a fraction, an empty ENUM or SET;
    - BINARY(n), whose trailing zeros it does not give back.
    """
    name = column.data_type
    if isinstance(value, bytes) and peer == "":
        peer = b""  # Python decodes no bytes at all without asking for the codec
    if kind == "mysql56" and ("unsigned" in column.column_type or name in ("enum", "set")):
        return False
    if name in ("uuid", "inet4", "inet6"):
        return False
    if value is None or value == "" or (name == "year" and value == 0):
        # Nulls are compared where no impossible date can be meant.
        return value is None and peer is not None and name not in ("date", "datetime", "timestamp", *_TEXTS)
    if name == "time":
        return not (value.startswith("-") and "." in value) and _time_text(peer, value) != value
    if name == "timestamp":
        return bool(value.replace(tzinfo=None) != peer)
    if name == "set":
        return bool(set(value.split(",")) != peer)
    if name == "bit":
        return bool(int(value) != int(peer, 2))
    if name == "decimal":
        return bool(Decimal(value) != peer)
    if name == "binary":
        return bool(value.rstrip(b"\0") != peer.rstrip(b"\0"))
    return bool(value != peer)


def _time_text(peer: timedelta, like: str) -> str:
    size = abs(peer)
    seconds = size.days * 86400 + size.seconds
    digits = len(like.partition(".")[2])
    fraction = f".{size.microseconds:06d}"[: digits + 1] if digits else ""
    sign = "-" if peer < timedelta(0) else ""
    return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"
