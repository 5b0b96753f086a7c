"""The columns of a source table and the user's policies for them: how each is decoded and what it becomes in Delta.

Key, types and names come from the table maps of a batch, or from ``information_schema``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.base.errors import ConfigError, UnsupportedError
from cdc.base.targets import MODE_COLUMNS, SOURCE_COLUMN
from cdc.binlog.sql.schemas import VERSIONED, versioned_remedy
from cdc.binlog.table_map import ColumnType
from cdc.config.columns import ColumnPolicy
from cdc.config.secrets import hash_key
from cdc.decode.column_types import DEFAULT_POLICIES, ValuePolicies
from cdc.decode.columns import METADATA_COLUMNS
from cdc.decode.policies import (
    KEEP,
    ColumnPolicies,
    PolicedColumn,
    SourceColumn,
    fraction_digits,
    police,
    policy_label,
    value_policies,
)
from cdc.lake.rows.column_types import from_arrow, spark_type, to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc.binlog.sql.schemas import TableSchema
    from cdc.config import ApplyConfig
    from cdc.decode import TableLayout


@dataclass(frozen=True)
class TablePolicies:
    """The policies of the configuration for the columns and values of one table."""

    table: str
    mode: str = "upsert"
    columns: dict[str, ColumnPolicy] = field(default_factory=dict)
    """By the source's name in lower case."""
    required: frozenset[str] = frozenset()
    """Names of columns that are configured for this very table, so that the table must have them."""
    values: ValuePolicies = DEFAULT_POLICIES
    json: str = "text"
    key: bytes | None = field(default=None, repr=False)
    shared: bool = False
    """Whether the Delta table is shared, so that it has one column more."""

    @classmethod
    def of(cls, table: str, apply: ApplyConfig, required: Iterable[str] = ()) -> TablePolicies:
        """Takes the policies from the settings of a table. Raises ConfigError if the key of ``hash`` is missing."""
        return cls(
            table,
            apply.mode,
            apply.columns,
            frozenset(required),
            value_policies(apply),
            apply.types.get("json", "text"),
            hash_key(apply) if any(policy.kind == "hash" for policy in apply.columns.values()) else None,
            apply.shared,
        )

    def column(self, name: str) -> ColumnPolicy:
        return self.columns.get(name.lower(), KEEP)

    def treats_alike(self, other: TablePolicies) -> bool:
        """Whether both tables have the same policies, so that equal rows of the source are equal in Delta."""
        return (self.columns, self.values, self.json, self.key) == (other.columns, other.values, other.json, other.key)

    def lake_name(self, name: str) -> str | None:
        """Returns the name of a source's column in Delta; None if it is dropped."""
        return self.column(name).lake_name(name)

    def require_names(self, names: Sequence[str]) -> None:
        """Raises ConfigError if a column would be renamed to the name of another one, UnsupportedError for the name of
        a column that the mode adds."""
        names_in_table = {name.lower() for name in names}
        for name in names:
            policy = self.column(name)
            lake_name = (self.lake_name(name) or "").lower()
            is_source = self.shared and lake_name == SOURCE_COLUMN
            if lake_name in MODE_COLUMNS[self.mode] or is_source:
                reason = "apply.shared or tables.route" if is_source else f"mode {self.mode}"
                raise UnsupportedError(
                    f"the column {name} has the name of a column that {reason} adds",
                    place=f"table {self.table}",
                    remedy=f"Give it another name there (tables.overrides.{self.table}: {{columns: {{{name}: {{rename: "
                    "…}}}), or choose another mode.",
                )
            if (
                policy.kind == "rename"
                and policy.name.lower() != name.lower()
                and policy.name.lower() in names_in_table
            ):
                raise ConfigError(
                    f"columns.{name}: cannot be renamed to {policy.name}, which the table has already",
                    place=f"table {self.table}",
                    remedy="Choose another name.",
                )

    def require_there(self, names: Iterable[str]) -> None:
        """Raises ConfigError if the table lacks a column that is configured for it."""
        present = list(names)
        unknown = sorted(self.required - {name.lower() for name in present})
        if unknown:
            raise ConfigError(
                f"columns names {', '.join(unknown)}, which the table does not have (it has {', '.join(present)})",
                place=f"table {self.table}",
                remedy="Correct tables.overrides.",
            )


@dataclass(frozen=True)
class SourceColumns:
    """The columns of one table: how they are read, and what they are in Delta."""

    table: str
    mode: str
    policies: ColumnPolicies
    values: ValuePolicies = DEFAULT_POLICIES
    variants: frozenset[str] = frozenset()
    """Names in Delta of columns that are read as JSON text and become VARIANT in the merge."""
    labels: dict[str, str] = field(default_factory=dict)
    """By the source's name in lower case: the policy that was applied to the column, if it changes the column. The
    Delta table keeps the labels in a property, because its schema alone does not show them."""
    lossy: frozenset[str] = frozenset()
    """Source names of numbers that are read as booleans: different values may become equal."""

    @property
    def read_fields(self) -> list[t.StructField]:
        """The columns as the data source delivers them."""
        return [t.StructField(f.name, from_arrow(f.type), True) for f in self.policies.fields]

    @property
    def fields(self) -> list[t.StructField]:
        """The columns as they are in Delta."""
        return [
            t.StructField(f.name, t.VariantType(), True) if f.name in self.variants else f for f in self.read_fields
        ]

    def field_of(self, source: str) -> t.StructField | None:
        """Returns the Delta column of a source column; None if it is dropped."""
        sources = [column.source.name.lower() for column in self.policies.columns]
        return self.fields[sources.index(source.lower())] if source.lower() in sources else None

    def has(self, source: str) -> bool:
        """Whether the source table has this column, dropped or not."""
        return source.lower() in self.labels or self.field_of(source) is not None

    def keys(self, sources: Sequence[str]) -> tuple[str, ...]:
        """Returns the Delta names of the key columns. Raises ConfigError if a policy makes their values ambiguous."""
        columns = {column.source.name.lower(): column for column in self.policies.columns}
        keys = []
        for name in sources:
            column = columns.get(name.lower())
            what = "drop" if column is None else str(column.policy)
            if column is not None and column.source.name in self.lossy:
                what = "types: {tinyint(1): boolean}"
            elif column is not None and column.field.name in self.variants:
                what = "types: {json: variant}"
            elif column is not None and column.policy.kind not in ("null", "mask"):
                keys.append(column.field.name)
                continue
            raise ConfigError(
                f"the column {name} is part of the table's key, which is not possible with the policy {what}",
                place=f"table {self.table}",
                remedy="Remove the policy (hash and rename are possible for keys), or write mode: append.",
            )
        return tuple(keys)

    @property
    def dates(self) -> list[str]:
        """Delta names of the columns in which a zero date becomes null."""
        if self.values.zero_dates == "fail":
            return []
        import pyarrow as pa

        return [
            c.field.name
            for c in self.policies.columns
            if pa.types.is_date(c.source.type) or pa.types.is_timestamp(c.source.type)
        ]

    def exact(self, sources: Sequence[str]) -> SourceColumns:
        """Returns the same columns with an exact key: a value of these source columns is refused if it would become
        null or lose bytes."""
        return replace(self, values=replace(self.values, exact=tuple(name.lower() for name in sources)))

    def only(self, names: Sequence[str]) -> SourceColumns:
        """Returns only these columns, by their names in Delta."""
        columns = tuple(column for column in self.policies.columns if column.field.name in names)
        return replace(self, policies=replace(self.policies, columns=columns), variants=self.variants & {*names})

    def options(self) -> dict[str, str]:
        """Returns the options for the data source; without the key."""
        columns = [
            {"source": c.source.name, "digits": c.source.digits, "name": c.field.name, "policy": c.policy.model_dump()}
            for c in self.policies.columns
        ]
        return {"columns": json.dumps(columns), "values": json.dumps(asdict(self.values))}


def columns_of_layout(layout: TableLayout, policies: TablePolicies) -> SourceColumns:
    """Returns the columns as a table map describes them. Raises UnsupportedTypeError, ConfigError."""
    names = [column.name for column in layout.columns]
    policies.require_names(names)
    kept = [name for name in names if policies.lake_name(name) is not None]
    plain = {f.name: f.type for f in replace(layout, policies=DEFAULT_POLICIES).source_fields(kept)}
    types = {f.name: f.type for f in layout.source_fields(kept)}
    columns = {column.name: column for column in layout.columns}
    digits = {name: columns[name].scale or fraction_digits(columns[name].column_type) for name in kept}
    documents = {name for name in kept if columns[name].type == ColumnType.JSON}
    return _columns(policies, names, types, plain, digits, documents)


def columns_of_schema(schema: TableSchema, policies: TablePolicies) -> SourceColumns:
    """Returns the columns as ``information_schema`` describes them.

    Raises UnsupportedTypeError, UnsupportedError, ConfigError.
    """
    require_supported(schema, policies.table)
    for column in schema.columns:
        if column.name.lower() in METADATA_COLUMNS:
            raise UnsupportedError(
                f"the column {column.name} has a name that Towpath uses itself",
                place=f"table {policies.table}",
                remedy="Rename it on the source, or exclude the table.",
            )
    names = [column.name for column in schema.columns]
    policies.require_names(names)
    columns = {c.name: c for c in schema.columns if policies.lake_name(c.name) is not None}
    plain = {name: to_arrow(spark_type(column, policies.table)) for name, column in columns.items()}
    types = {name: to_arrow(spark_type(column, policies.table, policies.values)) for name, column in columns.items()}
    digits = {name: fraction_digits(column.column_type) for name, column in columns.items()}
    documents = {name for name, column in columns.items() if column.data_type == "json"}
    return _columns(policies, names, types, plain, digits, documents)


def require_supported(schema: TableSchema, table: str) -> None:
    """Raises UnsupportedError for a system-versioned table."""
    if schema.system_versioned:
        raise UnsupportedError(f"the table {VERSIONED}", place=f"table {table}", remedy=versioned_remedy(table))


def _require_fit(policies: TablePolicies, name: str, policy: ColumnPolicy, plain: pa.DataType) -> None:
    """Raises ConfigError for ``text`` and ``bytes`` on a column of another type. ``plain``: the type that the column is
    decoded to without a policy."""
    import pyarrow as pa

    fits = {
        "text": (pa.types.is_date(plain) or pa.types.is_timestamp(plain), "DATE, DATETIME and TIMESTAMP"),
        "bytes": (pa.types.is_string(plain), "CHAR, VARCHAR and TEXT"),
    }.get(policy.kind)
    if fits is not None and not fits[0]:
        raise ConfigError(
            f"columns.{name}: the policy {policy} is for {fits[1]}, and the column is decoded as {plain}",
            place=f"table {policies.table}",
            remedy="Remove the policy.",
        )


def _columns(
    policies: TablePolicies,
    names: Sequence[str],
    types: dict[str, pa.DataType],
    plain: dict[str, pa.DataType],
    digits: dict[str, int],
    documents: set[str],
) -> SourceColumns:
    """``types`` and ``plain``: the types of the columns that are not dropped, with the value policies and without."""
    import pyarrow as pa

    policed: list[PolicedColumn] = []
    variants, labels, lossy = set(), {}, set()
    for name in names:
        policy = policies.column(name)
        label = policy_label(policy, policies.key)
        if name in types:
            _require_fit(policies, name, policy, plain[name])
            column = police(policies.table, SourceColumn(name, types[name], digits[name]), policy)
            assert column is not None  # a dropped column has no type here
            policed.append(column)
            is_unchanged = policy.kind in ("keep", "rename", "null")
            if name in documents and policies.json == "variant" and is_unchanged:
                variants.add(column.field.name)
                label += " as variant"
            elif types[name] != plain[name] and policy.kind not in ("text", "bytes"):
                label += " as boolean" if pa.types.is_boolean(types[name]) else " as microseconds"
            if pa.types.is_boolean(types[name]) and plain[name] != pa.int64():  # a BIT(1) has no third value
                lossy.add(name)
        if label:
            labels[name.lower()] = label.strip()
    columns = ColumnPolicies(tuple(policed), policies.key)
    return SourceColumns(
        policies.table, policies.mode, columns, policies.values, frozenset(variants), labels, frozenset(lossy)
    )
