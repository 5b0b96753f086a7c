"""``tables``: which tables are captured, and the settings of single tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated

from pydantic import Field, field_validator

from cdc.base.errors import ConfigError
from cdc.base.patterns import REFERENCE, PatternError, TablePattern, is_list, lower_name
from cdc.config.apply import (
    ForeignKeys,
    Mode,
    OnDrop,
    OnDropPartition,
    OnError,
    OnTruncate,
    OnUnknownEffect,
    SchemaChanges,
)
from cdc.config.columns import Columns, TableZeroDates, Types
from cdc.config.delta import Properties
from cdc.config.values import Doc, Section

SYSTEM_SCHEMAS = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
"""The servers' own schemas, which are never captured."""
SCRATCH_PREFIX = "towpath_plan_"
"""The beginning of the names of schemas that ``cdc plan --server`` makes and drops. They are never captured either."""


class ApplyOverrides(Section):
    """The settings of a single table, by its name. A key that is absent has its value from `apply`."""

    mode: Mode | None = None
    """As `apply.mode`."""
    keys: tuple[str, ...] | None = None
    """Columns that identify a row, for a table without a primary key."""
    zero_dates: TableZeroDates = None
    """As `apply.zero_dates`."""
    on_error: OnError | None = None
    """As `apply.on_error`."""
    schema_changes: SchemaChanges | None = None
    """As `apply.schema_changes`."""
    on_truncate: OnTruncate | None = None
    """As `apply.on_truncate`."""
    on_drop: OnDrop | None = None
    """As `apply.on_drop`."""
    on_drop_partition: OnDropPartition | None = None
    """As `apply.on_drop_partition`."""
    on_unknown_effect: OnUnknownEffect | None = None
    """As `apply.on_unknown_effect`."""
    foreign_keys: ForeignKeys | None = None
    """As `apply.foreign_keys`."""
    comments: bool | None = None
    """As `apply.comments`."""
    constraints: bool | None = None
    """As `apply.constraints`."""
    deletion_vectors: bool | None = None
    """As `apply.deletion_vectors`."""
    partition_by: tuple[str, ...] | None = None
    """As `apply.partition_by`."""
    cluster_by: tuple[str, ...] | None = Field(default=None, max_length=4)
    """As `apply.cluster_by`."""
    properties: Properties | None = None
    """As `apply.properties`; they are added to those."""
    types: Types | None = None
    """As `apply.types`; they are added to those."""
    columns: Columns | None = None
    """As `apply.columns`; they are added to those. Every column that is named here must be in the table."""
    members: dict[str, tuple[str, ...]] | None = None
    """Members of ENUM and SET columns, by the name of the column, where the binlog does not hold them and the server
    shows some of their characters as question marks."""

    def _contradictions(self) -> Iterator[str]:
        if self.keys == ():
            yield "keys must name at least one column"
        if self.mode == "append" and self.keys is not None:
            yield "keys and mode append contradict each other; append needs no keys, so remove one of them"


class TablesConfig(Section):
    r"""The tables that are captured, by regular expressions of [RE2](https://github.com/google/re2/wiki/Syntax) over `db.table`, matched whole."""  # noqa: E501

    include: Annotated[tuple[str, ...], Doc(example=[r"shop\..*"])] = Field(min_length=1)
    """Expressions for the tables that are captured. The servers' own schemas never are."""
    exclude: Annotated[tuple[str, ...], Doc(example=[r"shop\.tmp_.*"])] = ()
    """Expressions for the tables among them that are not captured."""
    overrides: Annotated[
        dict[str, ApplyOverrides],
        Doc(
            example={
                "shop.audit": {"mode": "append"},
                "shop.visits": {"keys": ["day", "page"]},
                "shop.customers": {
                    "columns": {"note": "drop", "phone": {"mask": 4}, "nick": {"rename": "alias"}},
                    "members": {"mood": ["calm", "🙂"]},
                },
            }
        ),
    ] = Field(default_factory=dict)
    """Settings of single tables, by `db.table`: any key of `apply` except `target` and the key of `hash`. Those of
    tables that `route` leads into one Delta table are written by the name of that one."""
    route: Annotated[dict[str, str], Doc(example={r"shop_\d+\.(orders|items)_\d+": r"shop.\1"})] = Field(
        default_factory=dict
    )
    r"""Delta tables that several source tables (shards) fill, each its own rows, which the column `_source` names by
    `db.table`: an expression for the source tables, and the `db.table` of their Delta table, where `\1` to `\9` stand
    for what the groups of the expression match."""
    lower_case_table_names: int = Field(default=0, ge=0, le=2)
    """The server's variable of this name. With 1 and 2 the names of databases and tables are the same in capital and
    small letters, and lower-case in the store and the lake; `include` and `exclude` ignore case. `cdc init` asks the
    server, and capture refuses another value than the server's."""

    @field_validator("include", "exclude")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            _compiled(pattern)
        return patterns

    @field_validator("route")
    @classmethod
    def _compile_route(cls, route: dict[str, str]) -> dict[str, str]:
        for pattern, target in route.items():
            groups, wanted = _compiled(pattern).groups, [int(number) for number in REFERENCE.findall(target)]
            if max(wanted, default=0) > groups:
                raise ValueError(f"{target!r} names group {max(wanted)} of {pattern!r}, which has {groups}")
            rest = REFERENCE.sub("x", target)
            db, _, table = rest.partition(".")
            if "\\" in rest or not (db and table):
                raise ValueError(
                    f"{target!r} is not the name of a table; write it as db.table, with \\1 to \\9 for groups of the "
                    "expression"
                )
        return route

    def _contradictions(self) -> Iterator[str]:
        for name in self.overrides:
            if name != self.name(name):
                yield (
                    f"overrides: {name!r} is {self.name(name)!r} with lower_case_table_names "
                    f"{self.lower_case_table_names}; write it so"
                )
            db, dot, table = name.partition(".")
            if not (db and dot and table):
                yield f"overrides: {name!r} is not the name of a table; write it as db.table"
            if self.is_target(name):
                continue
            if not self.includes_name(name):
                yield f"overrides: {name!r} is not among the tables that include and exclude choose"
            elif self.is_routed(name):
                yield f"overrides: {name!r} is routed; write its settings under {self.lake_name(name)!r}"
        for pattern, target in self.route.items():
            if target != self.name(target):
                yield (
                    f"route: {target!r} is {self.name(target)!r} with lower_case_table_names "
                    f"{self.lower_case_table_names}; write it so"
                )
            if not REFERENCE.search(target) and self.includes_name(target):
                yield (
                    f"route: {target!r}, the Delta table of {pattern!r}, is also the name of a table that include and "
                    "exclude choose; exclude that one, or give the Delta table another name"
                )

    # One by one, since expressions with flags like (?i) cannot be joined.
    @cached_property
    def _include(self) -> tuple[TablePattern, ...]:
        return tuple(TablePattern(pattern, ignores_case=self.ignores_case) for pattern in self.include)

    @cached_property
    def _exclude(self) -> tuple[TablePattern, ...]:
        return tuple(TablePattern(pattern, ignores_case=self.ignores_case) for pattern in self.exclude)

    @cached_property
    def _routes(self) -> tuple[tuple[TablePattern, str], ...]:
        return tuple((TablePattern(p, ignores_case=self.ignores_case), target) for p, target in self.route.items())

    def is_target(self, name: str) -> bool:
        """Whether ``route`` may lead tables into a Delta table of this name."""
        return any(
            re.fullmatch(".+".join(map(re.escape, REFERENCE.split(target)[::2])), name, re.DOTALL)
            for target in self.route.values()
        )

    def lake_name(self, table: str) -> str:
        """Returns the ``db.table`` of a source table's Delta table: its own name, unless the table is captured and
        ``route`` gives another one. Raises ConfigError if several expressions match, or if the other name is that of a
        source table."""
        name = self.name(table)
        if not (self.route and self.includes_name(name)):
            return table
        matching = [(p, lake_name) for p, target in self._routes if (lake_name := p.expanded(name, target)) is not None]
        if not matching:
            return table
        if len(matching) > 1:
            listed = " and ".join(repr(pattern.expression) for pattern, _ in matching)
            raise ConfigError(
                f"{listed} both match the table {table}" if len(matching) == 2 else f"{listed} match the table {table}",
                place="tables.route",
                remedy="Let one expression match each table.",
            )
        pattern, lake_name = matching[0]
        db, _, own_name = lake_name.partition(".")
        if not (db and own_name):
            raise ConfigError(
                f"{pattern.expression!r} leads the table {table} to {lake_name!r}, which is not the name of a table",
                place="tables.route",
                remedy="Let the groups match at least one character.",
            )
        if self.includes_name(lake_name):
            raise ConfigError(
                f"{pattern.expression!r} leads the table {table} to {lake_name}, which is also the name of a table "
                "that include and exclude choose",
                place="tables.route",
                remedy="Exclude that table, or give the Delta table another name.",
            )
        return lake_name

    def is_routed(self, table: str) -> bool:
        """Whether ``route`` leads ``db.table`` into a Delta table of another name. Raises as :meth:`lake_name`."""
        return self.lake_name(table) != table

    def override(self, table: str) -> ApplyOverrides | None:
        """Returns the settings of ``db.table`` alone, or those of its Delta table. Raises as :meth:`lake_name`."""
        return self.overrides.get(self.lake_name(table))

    @property
    def ignores_case(self) -> bool:
        """Whether the names of databases and tables are the same in capital and small letters."""
        return self.lower_case_table_names != 0

    def name(self, name: str) -> str:
        """Returns the name of a database, of a table, or ``db.table`` as store and lake have it."""
        return lower_name(name) if self.ignores_case else name

    def includes_name(self, name: str) -> bool:
        """Whether ``db.table`` is captured, as one text; either part may contain a dot."""
        return any(self.includes(name[:at], name[at + 1 :]) for at, char in enumerate(name) if char == ".")

    def includes(self, db: str, table: str) -> bool:
        """Whether ``db.table`` is captured. With ``lower_case_table_names`` the letters may be large or small."""
        db, table = self.name(db), self.name(table)
        if db in SYSTEM_SCHEMAS or db.startswith(SCRATCH_PREFIX):
            return False
        name = f"{db}.{table}"
        return any(p.matches(name) for p in self._include) and not any(p.matches(name) for p in self._exclude)


def _compiled(pattern: str) -> TablePattern:
    """Returns an expression for tables. Raises ValueError."""
    try:
        compiled = TablePattern(pattern)
    except PatternError as error:
        raise ValueError(str(error)) from None
    if is_list(pattern):
        raise ValueError(
            f"{pattern!r} has a comma, which does not separate expressions here; make each an item of the list "
            "(a comma in a table's name is written \\,)"
        )
    return compiled
