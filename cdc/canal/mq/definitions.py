"""The definitions of tables as entries show them, made into arrays and texts for the kernels."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from cdc.base.errors import UnsupportedTypeError
from cdc.base.version import package_version
from cdc.binlog.sql.schemas import quoted_members
from cdc.canal.messages import Column, Header, RowChange, parsed
from cdc.canal.mq.kernels import rows as r
from cdc.canal.mq.kernels import texts as t
from cdc.canal.mq.rules import Rules, java_hash

Longs = npt.NDArray[np.int64]
Format = Literal["canal-json", "canal-protobuf", "debezium-json"]


@dataclass(frozen=True)
class MessageOptions:
    """The settings that decide the form of messages."""

    format: Format
    rules: Rules
    name: str
    """The destination, which Debezium's ``source.name`` shows."""
    connector: str = "mysql"
    decimals: Literal["precise", "string"] = "precise"
    tombstones: bool = True


@dataclass
class DefinitionSet:
    """The definitions that were met. ``arrays`` are for the kernels, and change with each new one."""

    options: MessageOptions
    names: list[str] = field(default_factory=list)
    """``db.table`` of each."""
    topics: list[str] = field(default_factory=list)
    columns: list[tuple[Column, ...]] = field(default_factory=list)
    most_columns: int = 1

    def __post_init__(self) -> None:
        self._consts = bytearray()
        self._tables: list[list[int]] = []
        self._columns: list[list[int]] = []
        self._members: list[tuple[int, int]] = []
        self._hashes: list[tuple[int, int]] = []
        self.arrays: r.Definitions
        self._refresh()

    def add(self, entry: r.EntryParts, raw: npt.NDArray[np.uint8]) -> None:
        """Adds the definition that :func:`cdc.canal.mq.kernels.rows.definition_of` has not found. ``raw``: the entries.

        Raises UnsupportedTypeError for a column that the format does not have, PermanentError for the name of a topic.
        """
        hashes = self.arrays.hashes[-1]
        start, size = int(entry.name), int(entry.name_length)
        names = parsed(Header, raw[start : start + size].tobytes())
        rows = raw[int(entry.rows) : int(entry.rows_end)].tobytes()
        first = parsed(RowChange, rows).row_datas[0]
        columns = first.before_columns if int(entry.change) == r.DELETE else first.after_columns
        self._add(names.schema_name, names.table_name, tuple(columns))
        self._hashes.append((int(hashes[0]), int(hashes[1])))
        self._refresh()

    def _add(self, database: str, table: str, columns: tuple[Column, ...]) -> None:
        options, rules, name = self.options, self.options.rules, f"{database}.{table}"
        topic = rules.topic_of(database, table)
        hashing = rules.hashing_of(database, table)
        mode, partition, seed = r.FIXED, rules.partition, 0
        partitions = rules.partitions or 1
        hashed: set[str] = set()
        keys = {column.name for column in columns if column.is_key}
        if rules.partition_hash is None:
            if options.format == "debezium-json" and keys:
                mode = r.BY_KEY
        elif hashing is None:
            partition = 0
        elif hashing.by_table:
            partition = abs(java_hash(table)) % partitions
        else:
            mode, partition = r.BY_HASH, partitions
            seed = java_hash(database) if rules.database_hash else 0
            hashed = (
                keys
                if hashing.by_key
                else {column.name for column in columns if column.name.lower() in hashing.columns}
            )
            if hashing.columns and hashed:
                keys = hashed
        count = 1 + max((column.index for column in columns), default=0)
        by_index = {column.index: column for column in columns}
        first = len(self._columns)
        rows: list[list[int]] = []
        for index in range(count):
            column = by_index.get(index)
            if column is None:
                rows.append([0] * r.DefinedColumn.number_count())
                continue
            text = self._const(json.dumps(column.name, ensure_ascii=False).encode() + b":")
            code, a, b = self._code(name, column) if options.format == "debezium-json" else (0, 0, 0)
            rows.append([*text, int(column.name in keys), int(column.name in hashed), code, a, b])
        self._columns += rows
        head, types, tail, of_keys = self._texts(database, table, columns)
        self._tables.append(
            [first, count, mode, partition, seed, *head, *types, *of_keys, int(bool(keys)), *tail],
        )
        self.names.append(name)
        self.topics.append(topic)
        self.columns.append(columns)
        self.most_columns = max(self.most_columns, count)

    def _texts(
        self, database: str, table: str, columns: tuple[Column, ...]
    ) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int]]:
        """The fixed parts of the table's messages: see the kernels for what is between them."""

        def const(text: str) -> tuple[int, int]:
            return self._const(text.encode())

        nothing = const("")
        if self.options.format == "canal-protobuf":
            return nothing, nothing, nothing, nothing
        db, name = _json(database), _json(table)
        if self.options.format == "canal-json":
            types = ",".join(f"{_json(column.name)}:{_json(column.mysql_type)}" for column in columns)
            keys = [column.name for column in columns if column.is_key]
            return (
                const(f'],"database":{db},"es":'),
                const(f',"isDdl":false,"mysqlType":{{{types}}},"old":'),
                const(f'}},"table":{name},"ts":'),
                const(f',"pkNames":{_json(keys) if keys else "null"},"sql":"","sqlType":{{'),
            )
        options = self.options
        return (
            const(
                f',"source":{{"version":{_json(package_version())},"connector":{_json(options.connector)},'
                f'"name":{_json(options.name)},"ts_ms":'
            ),
            const(f',"snapshot":"false","db":{db},"sequence":null,"ts_us":'),
            const(f',"table":{name},"server_id":'),
            nothing,
        )

    def _code(self, table: str, column: Column) -> tuple[int, int, int]:
        """How a column's text becomes Debezium's value, and what that needs."""
        kind = column.mysql_type.lower()
        word = re.match(r"[a-z0-9_ ]*?(?=[( ]|$)", kind)
        name = word.group() if word else kind
        if name in _CODES:
            return _CODES[name], 0, 0
        if name in ("decimal", "numeric"):
            return (t.DECIMAL if self.options.decimals == "precise" else t.TEXT), 0, 0
        digits = re.search(r"\((\d+)\)", kind)
        length = int(digits.group(1)) if digits else 0
        if name == "bit":
            return (t.BOOLEAN, 0, 0) if length <= 1 else (t.BITS, (length + 7) // 8, 0)
        if name == "datetime":
            return (t.MILLIS if length <= 3 else t.MICROS), 0, 0
        if name in ("enum", "set"):
            members = quoted_members(column.mysql_type)
            if not members:
                raise UnsupportedTypeError(
                    f"the members of the column {column.name} are not known, so debezium-json cannot show its texts",
                    place=f"table {table}",
                    remedy="Let capture see the table's definition, or use the format canal-json.",
                )
            first = len(self._members)
            self._members += [self._const(_json(member)[1:-1].encode()) for member in members]
            size = sum(member[1] + 1 for member in self._members[first:])
            return (t.ENUM if name == "enum" else t.SET), size, first << 16 | len(members)
        raise UnsupportedTypeError(
            f"the column {column.name} has the type {column.mysql_type}, which debezium-json does not have",
            place=f"table {table}",
            remedy="Leave the table out by mq.filter, or use the format canal-json.",
        )

    def _const(self, raw: bytes) -> tuple[int, int]:
        self._consts.extend(raw)
        return len(self._consts) - len(raw), len(raw)

    def _refresh(self) -> None:
        count = len(self._tables)
        hashes = np.zeros((count + 1, 2), dtype=np.int64)  # the last one is room for one that is not known
        hashes[:count] = np.array(self._hashes, dtype=np.int64).reshape(-1, 2)
        slots = np.full(max(64, 1 << (4 * count).bit_length()), -1, dtype=np.int64)
        for number in range(count):
            a = int(hashes[number, 0])
            slot = (a ^ a >> 32) & (len(slots) - 1)
            while slots[slot] >= 0:
                slot = (slot + 1) & (len(slots) - 1)
            slots[slot] = number
        self.arrays = r.Definitions(
            hashes,
            slots,
            r.Definition.from_rows(self._tables),
            r.DefinedColumn.from_rows(self._columns),
            np.array(self._members or [(0, 0)], dtype=np.int64),
            np.frombuffer(bytes(self._consts) + b"\0", dtype=np.uint8),
        )


_CODES: dict[str, int] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "integer", "bigint", "float", "double"), t.NUMBER),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json"), t.TEXT),
    **dict.fromkeys(("uuid", "inet4", "inet6"), t.TEXT),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "vector"), t.BINARY),
    "year": t.YEAR,
    "date": t.DATE,
    "timestamp": t.INSTANT,
    "time": t.TIME,
    **dict.fromkeys(
        (
            "geometry",
            "point",
            "linestring",
            "polygon",
            "multipoint",
            "multilinestring",
            "multipolygon",
            "geomcollection",
            "geometrycollection",
        ),
        t.GEOMETRY,
    ),
}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
