"""``tables``: which tables are captured, and what holds for one of them alone."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from cdc.config.columns import Columns, OwnZeroDates, Types
from cdc.config.values import Section
from cdc.patterns import is_list


class ApplyOverrides(Section):
    """What a single table may have otherwise; absent keys come from ``apply``."""

    mode: Literal["upsert", "soft_delete", "append", "scd2"] | None = None
    keys: tuple[str, ...] | None = None
    """Columns that identify a row, for tables without a primary key."""
    zero_dates: OwnZeroDates = None
    types: Types | None = None
    """Added to those of ``apply``."""
    columns: Columns | None = None
    """Added to those of ``apply``; every column named here must be in the table."""
    members: dict[str, tuple[str, ...]] | None = None
    """Members of ENUM and SET columns, by column, for servers that show some of their characters as question marks."""

    @model_validator(mode="after")
    def _there(self) -> Self:
        if self.mode in ("soft_delete", "scd2"):
            raise ValueError(f"mode {self.mode} is not there yet; use upsert or append")
        if self.keys == ():
            raise ValueError("keys must name at least one column")
        if self.mode == "append" and self.keys is not None:
            raise ValueError("keys and mode append contradict each other; append needs no keys, so remove one of them")
        return self


class TablesConfig(Section):
    """Which tables are captured: regular expressions over ``db.table``, matched whole."""

    include: tuple[str, ...] = Field(min_length=1)
    exclude: tuple[str, ...] = ()
    overrides: dict[str, ApplyOverrides] = Field(default_factory=dict)

    @field_validator("include", "exclude")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
            if is_list(pattern):
                raise ValueError(
                    f"{pattern!r} has a comma, which does not separate expressions here; make each an item of the list "
                    "(a comma in a table's name is written \\,)"
                )
        return patterns

    @model_validator(mode="after")
    def _overrides_apply(self) -> Self:
        for name in self.overrides:
            db, dot, table = name.partition(".")
            if not (db and dot and table):
                raise ValueError(f"overrides: {name!r} is not the name of a table; write it as db.table")
            if not any(self.includes(name[:at], name[at + 1 :]) for at, char in enumerate(name) if char == "."):
                raise ValueError(f"overrides: {name!r} is not among the tables that include and exclude choose")
        return self

    # One by one, since expressions with flags like (?i) cannot be joined.
    @cached_property
    def _include(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern) for pattern in self.include)

    @cached_property
    def _exclude(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern) for pattern in self.exclude)

    def includes(self, db: str, table: str) -> bool:
        """Is ``db.table`` captured? The servers' own schemas never are."""
        if db in SYSTEM_SCHEMAS:
            return False
        name = f"{db}.{table}"
        return any(p.fullmatch(name) for p in self._include) and not any(p.fullmatch(name) for p in self._exclude)


SYSTEM_SCHEMAS = frozenset({"mysql", "information_schema", "performance_schema", "sys"})
