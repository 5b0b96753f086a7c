"""Slow writers of messages from parsed entries: the reference for the compiled ones, a value at a time.

Canal's flat message follows MQMessageUtils of Canal 1.1, Debezium's envelope the mappings in its documentation of MySQL's
connector.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from cdc.binlog.sql.schemas import quoted_members
from cdc.canal.mq.rules import Rules, java_hash
from tests.support.canal_proto import parsed

TYPES = {1: "INSERT", 2: "UPDATE", 3: "DELETE", 4: "CREATE", 5: "ALTER", 6: "ERASE", 8: "TRUNCATE", 9: "RENAME"}


def partition_of(rules: Rules, entry: Any, row: Any) -> int:
    """Returns the partition of a row, as Canal's Java computes it."""
    header = entry.header
    hashing = rules.hashing_of(header.schema_name, header.table_name)
    if hashing is None:
        return 0
    code = java_hash(header.table_name)
    if not hashing.by_table:
        code = java_hash(header.schema_name) if rules.database_hash else 0
        for column in row.before_columns if header.event_type == 3 else row.after_columns:
            if column.is_key if hashing.by_key else column.name.lower() in hashing.columns:
                code ^= java_hash(column.value)
    return abs(code) % (rules.partitions or 1)


def flat_messages(entries: list[Any], batch: int, rules: Rules) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Topic, partition and message (without ``ts``)."""
    for entry in entries:
        if entry.entry_type != 2:
            continue
        change, header = parsed("RowChange", entry.store_value), entry.header
        message: dict[str, Any] = {
            "data": None,
            "database": header.schema_name,
            "es": header.execute_time,
            "gtid": header.gtid,
            "id": batch,
            "isDdl": change.is_ddl,
            "mysqlType": None,
            "old": None,
            "pkNames": None,
            "sql": change.sql,
            "sqlType": None,
            "table": header.table_name,
            "type": TYPES[header.event_type],
        }
        topic = rules.topic_of(header.schema_name, header.table_name)
        if change.is_ddl:
            yield topic, 0 if rules.partition_hash else rules.partition, message
            continue
        columns = [row.before_columns if header.event_type == 3 else row.after_columns for row in change.row_datas]
        message["mysqlType"] = {column.name: column.mysql_type for column in columns[-1]}
        message["sqlType"] = {column.name: column.sql_type for column in columns[-1]}
        message["pkNames"] = [column.name for column in columns[0] if column.is_key] or None
        parts = [
            rules.partition if rules.partition_hash is None else partition_of(rules, entry, row)
            for row in change.row_datas
        ]
        for part in sorted(set(parts)):
            rows = [
                (row, new)
                for row, new, row_part in zip(change.row_datas, columns, parts, strict=True)
                if row_part == part
            ]
            part_message = {**message, "data": [as_map(new) for _, new in rows]}
            if header.event_type == 2:
                part_message["old"] = [
                    as_map([o for o, n in zip(row.before_columns, new, strict=True) if n.updated]) for row, new in rows
                ]
            yield topic, part, part_message


def as_map(columns: Any) -> dict[str, str | None]:
    return {column.name: None if column.is_null else column.value for column in columns}


def envelopes(entries: list[Any], *, precise: bool, tombstones: bool) -> Iterator[tuple[Any, Any, Any]]:
    """Key, value (without its times of processing) and the header of a moved row, of each message."""
    thread = None
    for entry in entries:
        header = entry.header
        if entry.entry_type == 1:
            thread = parsed("TransactionBegin", entry.store_value).thread_id or None
        if entry.entry_type != 2 or header.event_type > 3:
            continue
        for number, row in enumerate(parsed("RowChange", entry.store_value).row_datas):
            before, after = (
                None if not columns else {column.name: debezium_value(column, precise) for column in columns}
                for columns in (row.before_columns, row.after_columns)
            )
            source = {
                "connector": "mysql",
                "name": "shop",
                "ts_ms": header.execute_time,
                "snapshot": "false",
                "db": header.schema_name,
                "sequence": None,
                "ts_us": header.execute_time * 1000,
                "ts_ns": header.execute_time * 1_000_000,
                "table": header.table_name,
                "server_id": header.server_id,
                "gtid": header.gtid or None,
                "file": header.logfile_name,
                "pos": header.logfile_offset,
                "row": number,
                "thread": thread,
                "query": None,
            }
            old, new = (
                {column.name: debezium_value(column, precise) for column in columns if column.is_key} or None
                for columns in (row.before_columns, row.after_columns)
            )

            def value(op: str, before: Any, after: Any, source: Any = source) -> dict[str, Any]:
                return {"before": before, "after": after, "source": source, "transaction": None, "op": op}

            if header.event_type == 1:
                yield new, value("c", None, after), None
            elif header.event_type == 3:
                yield old, value("d", before, None), None
                if tombstones and old is not None:
                    yield old, None, None
            elif old is not None and any(column.updated and column.is_key for column in row.after_columns):
                yield old, value("d", before, None), ("__debezium.newkey", new)
                if tombstones:
                    yield old, None, None
                yield new, value("c", None, after), ("__debezium.oldkey", old)
            else:
                yield new, value("u", before, after), None


def debezium_value(column: Any, precise: bool) -> Any:
    """A column's value in Debezium's JSON."""
    if column.is_null:
        return None
    text, kind = column.value, column.mysql_type.lower()
    name = re.split(r"[( ]", kind)[0]
    digits = int((re.search(r"\((\d+)", kind) or [0, 0])[1])
    if name in ("tinyint", "smallint", "mediumint", "int", "bigint"):
        return int(text)
    if name in ("float", "double"):
        return float(text)
    if name == "decimal":
        return in_base64(unscaled(text)) if precise else text
    if name == "bit":
        if digits <= 1:
            return text == "1"
        return in_base64(int(text).to_bytes((digits + 7) // 8, "little"))
    if name == "year":
        return int(text)
    if name == "date":
        return None if (moment_of_value := moment(text)) is None else (moment_of_value.date() - date(1970, 1, 1)).days
    if name == "datetime":
        moment_of_value = moment(text)
        if moment_of_value is None:
            return None
        delta = moment_of_value - datetime(1970, 1, 1, tzinfo=UTC)
        us = (delta.days * 86400 + delta.seconds) * 1_000_000 + delta.microseconds
        return us if digits > 3 else us // 1000
    if name == "timestamp":
        return None if moment(text) is None else text.replace(" ", "T") + "Z"
    if name == "time":
        sign = -1 if text.startswith("-") else 1
        hours, minutes, seconds = text.lstrip("-").split(":")
        whole, _, fraction = seconds.partition(".")
        return sign * ((int(hours) * 3600 + int(minutes) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0")))
    if name == "enum":
        return quoted_members(column.mysql_type)[int(text) - 1] if int(text) else ""
    if name == "set":
        members = quoted_members(column.mysql_type)
        return ",".join(member for number, member in enumerate(members) if int(text) >> number & 1)
    if name.endswith(("binary", "blob")) or name == "vector":
        return in_base64(text.encode("latin-1"))
    if name in ("geometry", "point", "linestring", "polygon"):
        raw = text.encode("latin-1")
        return {"wkb": in_base64(raw[4:]), "srid": int.from_bytes(raw[:4], "little") or None}
    return text


def in_base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def unscaled(text: str) -> bytes:
    """Returns the bytes that Java's ``BigInteger.toByteArray()`` gives."""
    number = (
        int(Decimal(text).scaleb(len(text.partition(".")[2])).to_integral_exact())
        if len(text) < 28
        else int(text.replace(".", ""))
    )
    length = 1
    while not -(1 << 8 * length - 1) <= number < 1 << 8 * length - 1:
        length += 1
    return number.to_bytes(length, "big", signed=True)


def moment(text: str) -> datetime | None:
    """None for dates that are none, and for year 0, which Python does not have."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
