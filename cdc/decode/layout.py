"""A table's layout: its columns, their Arrow types, and the arrays by which the kernels know each column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.binlog.table_map import ColumnType, TableMap
from cdc.decode.charsets.collations import LATIN1
from cdc.decode.columns import Column, resolve
from cdc.decode.conversion import Conversion
from cdc.decode.kernels import constants as k
from cdc.decode.plans import DEFAULT_POLICIES, Plan, ValuePolicies, plan_column, unsupported
from cdc.errors import UsageError
from cdc.schemas import TableSchema

Images = Literal["after", "both"]

META_FIELDS = (
    pa.field("_op", pa.int8()),
    pa.field("_seq", pa.int64()),
    pa.field("_row", pa.int64()),
    pa.field("_commit_time", pa.timestamp("us", tz="UTC")),
    pa.field("_gtid", pa.string()),
)
BEFORE = "_before"


@dataclass(frozen=True)
class KernelSpec:
    """A projection of a table's columns as arrays."""

    columns: tuple[int, ...]
    """Ordinals of the wanted columns."""
    fields: tuple[pa.Field, ...]
    """Their final names and types."""
    raw: tuple[pa.DataType, ...]
    """The types that the kernels write."""
    conversions: tuple[Conversion | None, ...]
    """What makes the final types of these."""
    spec: npt.NDArray[np.int64]
    member_at: npt.NDArray[np.int64]
    members: npt.NDArray[np.uint8]
    has_key: bool
    min_row_bytes: int
    """No row image is shorter."""


@dataclass(frozen=True)
class TableLayout:
    """The columns of a table as the binlog describes them at one place."""

    table: str
    """``db.table``."""
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    """Names of the key's columns, in the key's order; empty without a key."""
    policies: ValuePolicies = DEFAULT_POLICIES

    @classmethod
    def of(
        cls, table_map: TableMap, schema: TableSchema | None = None, policies: ValuePolicies = DEFAULT_POLICIES
    ) -> TableLayout:
        """``schema``: the table in ``information_schema`` at that place, if it is known.

        Raises SourceRefusedError where the table map lacks names and the schema is missing or contradicts it;
        UnsupportedError where a column's name is one of ours; DamagedError.
        """
        columns, primary_key = resolve(table_map, schema)
        return cls(table_map.full_name, columns, primary_key, policies)

    @cached_property
    def _plans(self) -> tuple[Plan, ...]:
        return tuple(plan_column(self.table, column, self.policies) for column in self.columns)

    @property
    def shape(self) -> tuple[tuple[str, pa.DataType | None], ...]:
        """Names and types of the table's own columns; None for one that cannot be decoded."""
        return tuple((column.name, plan.arrow) for column, plan in zip(self.columns, self._plans, strict=True))

    @cached_property
    def json_columns(self) -> npt.NDArray[np.int64]:
        """(columns,): 1 for those in MySQL's binary JSON, which a partial update may change in part."""
        return np.array([column.type == ColumnType.JSON for column in self.columns], dtype=np.int64)

    def wanted(self, columns: Sequence[str] | None) -> tuple[int, ...]:
        """Ordinals of the named columns (None: all), in the table's order. Raises UsageError for a name that is
        not there."""
        if columns is None:
            return tuple(range(len(self.columns)))
        names = [column.name for column in self.columns]
        for name in columns:
            if name not in names:
                raise UsageError(f"table {self.table} has no column {name}", remedy=f"It has {', '.join(names)}.")
        return tuple(i for i, name in enumerate(names) if name in columns)

    def own_fields(self, columns: Sequence[str] | None = None) -> tuple[pa.Field, ...]:
        """Fields of the table's own columns. Raises UnsupportedTypeError for a column that cannot be decoded."""
        fields = []
        for i in self.wanted(columns):
            arrow = self._plans[i].arrow
            if arrow is None:
                raise unsupported(self.table, self.columns[i])
            # Nullable all: even a NOT NULL date may be a zero date, which has no value here.
            fields.append(pa.field(self.columns[i].name, arrow))
        return tuple(fields)

    def arrow_schema(self, images: Images = "after", columns: Sequence[str] | None = None) -> pa.Schema:
        """Schema of the record batches. Raises UnsupportedTypeError for a column that cannot be decoded."""
        own = self.own_fields(columns)
        extra = (pa.field(BEFORE, pa.struct(own)),) if images == "both" else ()
        return pa.schema([*META_FIELDS, *own, *extra])

    def kernel_spec(self, columns: Sequence[str] | None = None) -> KernelSpec:
        """The arrays that describe the columns to the kernels."""
        wanted = self.wanted(columns)
        fields = self.own_fields(columns)
        spec = np.zeros((len(self.columns), k.SPEC_SIZE), dtype=np.int64)
        blob = bytearray()
        member_at: list[int] = []
        min_row = (len(self.columns) + 7) // 8
        for i, (column, plan) in enumerate(zip(self.columns, self._plans, strict=True)):
            kind, b = plan.kind if i in wanted else k.SKIP, plan.b
            if kind == k.ENUM:
                b = len(member_at)
                for member in plan.members:
                    member_at.append(len(blob))
                    blob += member
                member_at.append(len(blob))
            out = value_width(plan.raw) if i in wanted and plan.raw is not None else 0
            spec[i] = (kind, plan.width, plan.prefix, plan.a, b, column.name in self.primary_key, out)
            min_row += 0 if column.nullable else plan.width or plan.prefix
        return KernelSpec(
            columns=wanted,
            fields=fields,
            raw=tuple(self._plans[i].raw or pa.null() for i in wanted),
            conversions=tuple(self._plans[i].conversion for i in wanted),
            spec=spec,
            member_at=np.array([*member_at, 0], dtype=np.int64),
            members=np.frombuffer(bytes(blob) + b"\0", dtype=np.uint8),
            has_key=bool(self.primary_key),
            min_row_bytes=min_row,
        )


def value_width(arrow: pa.DataType) -> int:
    """Bytes of a value in the Arrow buffer; 0 for strings and binary."""
    return 0 if arrow in (pa.string(), pa.binary()) else arrow.bit_width // 8


def latin1_table() -> npt.NDArray[np.uint8]:
    """(256, 4): the UTF-8 bytes of each latin1 byte, and in the last place how many they are."""
    table = np.zeros((256, 4), dtype=np.uint8)
    for byte, character in enumerate(LATIN1):
        encoded = character.encode()
        table[byte, : len(encoded)] = list(encoded)
        table[byte, 3] = len(encoded)
    return table
