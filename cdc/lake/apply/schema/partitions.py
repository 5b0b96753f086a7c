"""Which rows lay in partitions of the source, as a condition on the rows in Delta.

A condition is made only where it gives each row the partition that the server gives it. Everything else is
:class:`Unclear`, and the statement needs a snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.binlog.sql.partitions import (
    DEFAULT,
    MAXVALUE,
    NULL,
    ColumnOf,
    Expression,
    FunctionCall,
    Number,
    Partition,
    Partitions,
)
from cdc.decode.policies import fraction_digits
from cdc.lake.delta.sql import literal, quote, text_literal

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
    from cdc.lake.apply.schema.columns import DeltaColumn
    from cdc.lake.delta.tables import Target

_INTEGERS: dict[type[t.DataType], tuple[int, str]] = {
    t.ByteType: (7, "Y"), t.ShortType: (15, "S"), t.IntegerType: (31, ""), t.LongType: (63, "L"),
}  # fmt: skip
"""Bits of the values, and the suffix of a literal."""
_SOURCE_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year"})
_DAYS_TO_1970 = 719_528
"""Days from the year 0 on, as the server's TO_DAYS counts them."""
_FIRST_DAY, _LAST_DAY = date.min.toordinal() + 365, date.max.toordinal() + 365
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})")
_DATETIME = re.compile(r"(\d{4}-\d{2}-\d{2})(?: (\d{2}:\d{2}:\d{2})(?:\.(\d{1,6}))?)?")
_LETTERS = re.compile(
    r"(?:(?:utf8|utf8mb3|utf8mb4|latin1|ascii)_(?:general|unicode|unicode_520|swedish)(?:_nopad)?_ci"
    r"|utf8mb4_0900_ai_ci|(?:utf8mb3_|utf8mb4_)?uca1400_(?:nopad_)?ai_ci)"
)
"""Collations that have digits before letters, letters in the order of the alphabet, and no other difference between
two of them than the case."""
_PLAIN, _PRINTABLE = "[0-9A-Za-z]*", "([ -~]*[!-~])?"
_OF_DATE = {
    "year": "year({})", "month": "month({})", "dayofmonth": "day({})", "dayofweek": "dayofweek({})",
    "weekday": "weekday({})", "dayofyear": "dayofyear({})", "quarter": "quarter({})",
    "to_days": f"(datediff({{}}, DATE'1970-01-01') + {_DAYS_TO_1970})",
    "extract year": "year({})", "extract month": "month({})", "extract day": "day({})",
    "extract quarter": "quarter({})", "extract year_month": "(year({0}) * 100 + month({0}))",
}  # fmt: skip
"""Functions of a DATE or DATETIME, as Spark's SQL."""
_OF_DATETIME = {
    "hour": "hour({})", "minute": "minute({})", "second": "second({})", "extract hour": "hour({})",
    "extract minute": "minute({})", "extract second": "second({})",
    "to_seconds": f"((datediff({{0}}, DATE'1970-01-01') + {_DAYS_TO_1970}L) * 86400L"
    " + hour({0}) * 3600L + minute({0}) * 60L + second({0}))",
}  # fmt: skip
"""Functions of a DATETIME alone."""
_OPERATORS = {"+": "({} + {})", "-": "({} - {})", "*": "({} * {})", "%": "({} % nullif({}, 0L))",
              "div": "({} div nullif({}, 0L))"}  # fmt: skip


class Unclear(Exception):
    """Why the rows of a partition cannot be told, as a clause."""


@dataclass
class PartitionCondition:
    """The rows of partitions."""

    where: str
    """SQL on the columns of the Delta table; never null."""
    doubts: dict[str, str] = field(default_factory=dict)
    """Conditions of rows for which the answer is not certain, each with the reason as a clause."""


def condition_of(
    partitions: Partitions,
    names: Sequence[str],
    target: Target,
    schema: TableSchema,
    lake_columns: Iterable[DeltaColumn],
) -> PartitionCondition:
    """Returns the condition of the rows in these partitions or subpartitions. ``schema``: the source's before the
    statement; ``lake_columns``: the source's columns in the Delta table. Raises Unclear."""
    work = _Work(partitions, _Columns(target, schema, {column.name.lower(): column for column in lake_columns}))
    return PartitionCondition(" OR ".join(f"({work.of_name(name)})" for name in names), work.columns.doubts)


@dataclass
class _Columns:
    """The columns that tell a row's partition."""

    target: Target
    schema: TableSchema
    lake_columns: dict[str, DeltaColumn]
    doubts: dict[str, str] = field(default_factory=dict)

    def find(self, name: str) -> tuple[ColumnSchema, str, t.DataType]:
        """Returns a column of the source, and its SQL and type in Delta. Raises Unclear."""
        column = next((c for c in self.schema.columns if c.name.lower() == name.lower()), None)
        policy, lake_name = self.target.policies.column(name), self.target.policies.lake_name(name)
        lake_column = None if lake_name is None else self.lake_columns.get(lake_name.lower())
        if policy.kind not in ("keep", "rename") or lake_column is None or column is None:
            raise Unclear(f"the column {name}, which tells a row's partition, is not in Delta as it is at the source")
        if self.target.apply.schema_changes == "ignore":
            raise Unclear(f"with schema_changes: ignore the column {name} may have other values than at the source")
        return column, quote(lake_column.name), lake_column.type

    def may_be_null(self, column: ColumnSchema, sql: str) -> bool:
        """Whether null stands for NULL alone. Notes the doubt about a date that is null because it is impossible."""
        if column.data_type not in ("date", "datetime", "timestamp"):
            return column.nullable
        if self.target.policies.values.zero_dates == "fail":
            return column.nullable
        keys = () if self.target.apply.mode == "append" else self.target.apply.keys or self.schema.primary_key
        if column.name.lower() in {key.lower() for key in keys}:
            return False  # no key in Delta is null
        self.doubts[f"{sql} IS NULL"] = f"rows have no date in {column.name}, which may be an impossible date"
        return False


@dataclass
class _Work:
    partitions: Partitions
    columns: _Columns

    def of_name(self, name: str) -> str:
        at = self.partitions.index(name)
        if at is not None:
            return self.of_partition(at)
        place = self.partitions.subpartition(name)
        if place is None:
            raise Unclear(f"the table has no partition {name}")
        method, expression, count = (
            self.partitions.sub_method, self.partitions.sub_expression, self.partitions.sub_count,
        )  # fmt: skip
        if expression is None:
            raise Unclear(f"the function of {method} is not computed here")
        return f"({self.of_partition(place[0])}) AND {self._hashed(method, expression, count, place[1])}"

    def of_partition(self, at: int) -> str:
        p, partition = self.partitions, self.partitions.partitions[at]
        if "HASH" in p.method:
            return self._hashed(p.method, p.expressions[0], len(p.partitions), at)
        if p.method.startswith("LIST"):
            return self._listed(partition)
        below = [p.partitions[at - 1].values[0]] if at else []
        parts = [self._below(partition.values[0])] + [f"NOT ({self._below(values)})" for values in below]
        return " AND ".join(f"({part})" for part in parts)

    # --- RANGE

    def _below(self, bounds: Sequence[str]) -> str:
        """Returns the condition of rows below the bounds of a RANGE partition; null is below everything."""
        if "COLUMNS" not in self.partitions.method:
            return self._expression_below(self.partitions.expressions[0], bounds[0])
        condition = "false"
        for expression, bound in reversed(list(zip(self.partitions.expressions, bounds, strict=True))):
            assert isinstance(expression, ColumnOf)
            less, equal = self._compared(expression.name, bound)
            condition = f"{less} OR ({equal} AND ({condition}))" if condition != "false" else less
        return condition

    def _expression_below(self, expression: Expression, bound: str) -> str:
        if bound == MAXVALUE:
            return "true"
        limit = int(bound)
        if isinstance(expression, ColumnOf):
            return self._compared(expression.name, bound)[0]
        inverse = self._inverse(expression, limit)
        if inverse is not None:
            return inverse
        value = self._integer(expression)
        return f"({value} IS NULL OR {value} < {_long(limit)})"

    def _inverse(self, expression: Expression, limit: int) -> str | None:
        """Returns the condition on the column itself, so that files are left out by their statistics; None if the
        function does not rise with it."""
        if not isinstance(expression, FunctionCall) or len(expression.arguments) != 1:
            return None
        (argument,) = expression.arguments
        if not isinstance(argument, ColumnOf) or expression.name not in ("to_days", "year", "unix_timestamp"):
            return None
        column, sql, kind = self.columns.find(argument.name)
        self._integer(expression)  # raises for a type that the function is not computed of
        is_null = f"{sql} IS NULL OR " if self.columns.may_be_null(column, sql) else ""
        if expression.name == "unix_timestamp":
            return f"({is_null}{sql} < timestamp_micros({limit * 1_000_000}L))"
        if expression.name == "year":
            if limit > date.max.year:
                return "true"
            day = date(limit, 1, 1) if limit >= 1 else None
        else:
            if limit > _LAST_DAY:
                return "true"
            day = date.fromordinal(limit - 365) if limit >= _FIRST_DAY else None
        if day is None:
            raise Unclear("a partition ends before the year 1")
        return f"({is_null}{sql} < {_moment(datetime(day.year, day.month, day.day), kind)})"  # noqa: DTZ001

    def _compared(self, name: str, bound: str) -> tuple[str, str]:
        """Returns the conditions that a column is less than a bound, and that it is equal."""
        column, sql, kind = self.columns.find(name)
        null = self.columns.may_be_null(column, sql)
        less = f"{sql} IS NULL OR " if null else ""
        if bound == MAXVALUE:
            return "true", "false"
        if bound == NULL:
            return "false", f"{sql} IS NULL"
        value = self._value(column, kind, sql, bound)
        if isinstance(value, bool):  # the bound is beyond the type's values
            return ("true" if value else f"{less}false", "false")
        compared, constant = value
        return f"({less}{compared} < {constant})", f"coalesce({compared} = {constant}, false)"

    # --- LIST and HASH

    def _listed(self, partition: Partition) -> str:
        if partition.values != ((DEFAULT,),):
            return " OR ".join(f"({self._is_member(values)})" for values in partition.values)
        others = [self._listed(other) for other in self.partitions.partitions if other.values != ((DEFAULT,),)]
        return f"NOT ({' OR '.join(others)})" if others else "true"

    def _is_member(self, values: Sequence[str]) -> str:
        parts = []
        for expression, value in zip(self.partitions.expressions, values, strict=True):
            if isinstance(expression, ColumnOf):
                parts.append(self._compared(expression.name, value)[1])
                continue
            computed = self._integer(expression)
            parts.append(
                f"{computed} IS NULL" if value == NULL else f"coalesce({computed} = {_long(int(value))}, false)"
            )
        return " AND ".join(parts)

    def _hashed(self, method: str, expression: Expression, count: int, at: int) -> str:
        value = f"coalesce({self._integer(expression)}, {-1 << 63}L)"  # so servers hash NULL
        if method == "HASH":
            return f"abs({value} % {count}L) = {at}L"
        mask = (1 << (count - 1).bit_length()) - 1
        inner = f"({value} & {mask}L)"
        return f"(CASE WHEN {inner} >= {count}L THEN {value} & {mask >> 1}L ELSE {inner} END) = {at}L"

    # --- expressions

    def _integer(self, expression: Expression) -> str:
        """Returns an expression as SQL of type BIGINT. Raises Unclear."""
        match expression:
            case Number(value):
                return _long(value)
            case ColumnOf(name):
                column, sql, kind = self.columns.find(name)
                if column.data_type not in _SOURCE_INTEGERS or type(kind) not in _INTEGERS:
                    raise Unclear(f"the expression computes with {name}, which is {column.column_type}")
                return f"CAST({sql} AS BIGINT)"
            case FunctionCall("-", (inner,)):
                return f"(-{self._integer(inner)})"
            case FunctionCall(name, (left, right)) if name in _OPERATORS:
                return _OPERATORS[name].format(self._integer(left), self._integer(right))
            case FunctionCall("abs", (inner,)):
                return f"abs({self._integer(inner)})"
            case FunctionCall(("floor" | "ceiling") as name, (inner,)):
                return self._rounded(name, inner)
            case FunctionCall("unix_timestamp", (ColumnOf(name),)):
                column, sql, kind = self.columns.find(name)
                if column.data_type != "timestamp" or fraction_digits(column.column_type):
                    raise Unclear(f"UNIX_TIMESTAMP of a column that is {column.column_type}")
                return self._of_time(column, sql, kind, t.TimestampType, "unix_seconds({})")
            case FunctionCall("datediff", (ColumnOf(left), ColumnOf(right))):
                return f"CAST(datediff({self._date(left)}, {self._date(right)}) AS BIGINT)"
            case FunctionCall(name, (ColumnOf(column_name),)) if name in _OF_DATE or name in _OF_DATETIME:
                column, sql, kind = self.columns.find(column_name)
                template = _OF_DATE.get(name) or _OF_DATETIME[name]
                if name in _OF_DATETIME and column.data_type != "datetime":
                    raise Unclear(f"the function {name.upper()} of a column that is {column.column_type}")
                return f"CAST({template.format(self._date(column_name))} AS BIGINT)"
            case FunctionCall(name):
                raise Unclear(f"the function {name.upper()} is not computed here")
            case _:
                raise Unclear("its partitions are by an expression that is not computed here")

    def _rounded(self, name: str, inner: Expression) -> str:
        match inner:
            case FunctionCall("unix_timestamp", (ColumnOf(column_name),)) if name == "floor":
                column, sql, kind = self.columns.find(column_name)
                if column.data_type != "timestamp":
                    raise Unclear(f"UNIX_TIMESTAMP of a column that is {column.column_type}")
                return self._of_time(column, sql, kind, t.TimestampType, "unix_seconds({})")
            case ColumnOf(column_name):
                column, sql, kind = self.columns.find(column_name)
                if column.data_type == "decimal" and isinstance(kind, t.DecimalType) and kind.precision <= 18:
                    return f"CAST({'floor' if name == 'floor' else 'ceil'}({sql}) AS BIGINT)"
        return self._integer(inner)

    def _date(self, name: str) -> str:
        """Returns the SQL of a DATE or DATETIME column. Raises Unclear for any other one."""
        column, sql, kind = self.columns.find(name)
        lake_type = {"date": t.DateType, "datetime": t.TimestampNTZType}.get(column.data_type)
        if lake_type is None:
            raise Unclear(f"a function of dates is of the column {name}, which is {column.column_type}")
        return self._of_time(column, sql, kind, lake_type, "{}")

    def _of_time(
        self, column: ColumnSchema, sql: str, kind: t.DataType, lake_type: type[t.DataType], template: str
    ) -> str:
        if not isinstance(kind, lake_type):
            raise Unclear(f"the column {column.name} is {kind.simpleString()} in Delta")
        self.columns.may_be_null(column, sql)
        return template.format(sql)

    def _value(self, column: ColumnSchema, kind: t.DataType, sql: str, bound: str) -> tuple[str, str] | bool:
        """Returns the SQL that is compared and the constant that it is compared with; True for a bound above all values
        of the type, False for one below them. Raises Unclear."""
        is_text = bound.startswith("'")
        if column.data_type in _SOURCE_INTEGERS and not is_text:
            return _number(sql, kind, int(bound))
        if column.data_type in ("date", "datetime") and is_text:
            moment = _moment_of(bound[1:-1], column)
            if moment is not None and isinstance(
                kind, t.DateType if column.data_type == "date" else t.TimestampNTZType
            ):
                return sql, _moment(moment, kind)
        if column.data_type in ("char", "varchar") and is_text and isinstance(kind, t.StringType):
            return self._texts(column, sql, bound[1:-1].replace("''", "'").replace("\\\\", "\\"))
        raise Unclear(f"the column {column.name} is {column.column_type}, and a partition's value there is {bound}")

    def _texts(self, column: ColumnSchema, sql: str, text: str) -> tuple[str, str]:
        collation = column.collation or ""
        convert: Callable[[str], str]
        if collation.endswith("_bin"):
            allowed, convert = _PRINTABLE, str
        elif _LETTERS.fullmatch(collation):
            allowed, convert = _PLAIN, str.upper
        else:
            raise Unclear(f"texts of {column.name} are compared by the collation {collation or 'of the table'}")
        if not re.fullmatch(allowed, text):
            raise Unclear(f"how the collation {collation} compares {text!r} is not computed here")
        pattern = literal(rf"^(?:{allowed})\z")
        self.columns.doubts[f"NOT ({sql} RLIKE {pattern})"] = (
            f"texts of {column.name} have characters whose order in {collation} is not computed here"
        )
        return (f"upper({sql})" if convert is str.upper else sql), text_literal(convert(text))


def _number(sql: str, kind: t.DataType, value: int) -> tuple[str, str] | bool:
    """Returns a comparison with an integer, whose literal has exactly the column's type."""
    if isinstance(kind, t.DecimalType) and kind.scale == 0:
        fits = abs(value) < 10**kind.precision
        return (sql, f"CAST({literal(str(value))} AS {kind.simpleString()})") if fits else value > 0
    bits_and_suffix = _INTEGERS.get(type(kind))
    if bits_and_suffix is None:
        raise Unclear(f"a column of integers is {kind.simpleString()} in Delta")
    bits, suffix = bits_and_suffix
    if not -(1 << bits) <= value < 1 << bits:
        return value > 0
    return sql, f"{value}{suffix}"


def _long(value: int) -> str:
    if not -(1 << 63) <= value < 1 << 63:
        raise Unclear(f"{value} is beyond BIGINT")
    return f"{value}L"


def _moment_of(text: str, column: ColumnSchema) -> datetime | None:
    """Returns a date or time as bounds have it; None if it is not certain what it means."""
    try:
        day = _DATE.fullmatch(text)
        if day is not None:
            return datetime(int(day[1]), int(day[2]), int(day[3]))  # noqa: DTZ001
        time = _DATETIME.fullmatch(text) if column.data_type == "datetime" else None
        if time is None or len(time[3] or "") > fraction_digits(column.column_type):
            return None
        return datetime.fromisoformat(f"{time[1]} {time[2] or '00:00:00'}") + timedelta(
            microseconds=int((time[3] or "").ljust(6, "0"))
        )
    except ValueError:
        return None


def _moment(moment: datetime, kind: t.DataType) -> str:
    if isinstance(kind, t.DateType):
        return f"DATE'{moment.date().isoformat()}'"
    return f"TIMESTAMP_NTZ'{moment.isoformat(sep=' ')}'"
