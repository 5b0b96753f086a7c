"""The partitions of a table: ``PARTITION BY …`` of a statement or of SHOW CREATE TABLE, and what statements make of it.

Only what is understood as a whole is read; the definition is unknown otherwise. :meth:`Partitions.to_text` writes the
clause in one form, whichever server and whichever spelling it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache

from cdc.binlog.sql.literals import take_literal
from cdc.binlog.sql.tokens import UNREADABLE, Cursor, Token, split_commas, tokenize

_ADDITIVE = {"+": "+", "-": "-"}
_MULTIPLICATIVE = {"*": "*", "%": "%", "MOD": "%", "DIV": "div"}
_METHODS = ("RANGE", "LIST", "RANGE COLUMNS", "LIST COLUMNS", "HASH", "LINEAR HASH")
_DAYS_OF_YEAR_0 = 365
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
MAXVALUE, NULL, DEFAULT = "MAXVALUE", "NULL", "DEFAULT"
"""Values of :attr:`Partition.values` that are no numbers and no texts."""


# --- expressions


@dataclass(frozen=True, slots=True)
class ColumnOf:
    """The value of a column."""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    value: int


@dataclass(frozen=True, slots=True)
class Text:
    """A text literal, as bounds have it: ``TO_DAYS('2024-01-01')``."""

    value: str


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function or an operator: ``to_days``, ``+``, ``div``, ``extract year_month``; in lower case."""

    name: str
    arguments: tuple[Expression, ...]


Expression = ColumnOf | Number | Text | FunctionCall
_Parser = Callable[[Cursor], "Expression | None"]


def columns_of(expression: Expression) -> tuple[str, ...]:
    """Returns the names of the columns in an expression."""
    if isinstance(expression, ColumnOf):
        return (expression.name,)
    if isinstance(expression, FunctionCall):
        return tuple(dict.fromkeys(name for part in expression.arguments for name in columns_of(part)))
    return ()


def _renamed(expression: Expression, names: Mapping[str, str]) -> Expression:
    match expression:
        case ColumnOf(name):
            return ColumnOf(names.get(name.lower(), name))
        case FunctionCall(function, arguments):
            return FunctionCall(function, tuple(_renamed(part, names) for part in arguments))
    return expression


def _shown(expression: Expression) -> str:
    match expression:
        case ColumnOf(name):
            return _quoted(name)
        case Number(value):
            return str(value)
        case Text(value):
            return _text(value)
        case FunctionCall("-", (inner,)):
            return f"-({_shown(inner)})"
        case FunctionCall(name, arguments):
            parts = [_shown(part) for part in arguments]
            if name in ("+", "-", "*", "%", "div"):
                return f"({parts[0]} {name} {parts[1]})"
            if name.startswith("extract "):
                return f"extract({name.removeprefix('extract ')} from {parts[0]})"
            return f"{name}({', '.join(parts)})"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _parse(tokens: list[Token]) -> Expression | None:
    """Returns the expression that all these tokens make; None if it is not understood."""
    c = Cursor(tokens, "")
    expression = _sum(c)
    return expression if c.at_end() else None


def _sum(c: Cursor) -> Expression | None:
    return _chain(c, _ADDITIVE, _product)


def _product(c: Cursor) -> Expression | None:
    return _chain(c, _MULTIPLICATIVE, _signed)


def _chain(c: Cursor, operators: dict[str, str], operand: _Parser) -> Expression | None:
    """Takes operands between operators of one precedence, from left to right."""
    left = operand(c)
    while left is not None and (token := c.peek()) is not None:
        operator = operators.get(token.text.upper()) if token.kind in ("word", "punct") else None
        if operator is None:
            break
        c.at += 1
        right = operand(c)
        left = None if right is None else FunctionCall(operator, (left, right))
    return left


def _signed(c: Cursor) -> Expression | None:
    if c.take_punct("-"):
        inner = _signed(c)
        if inner is None:
            return None
        return Number(-inner.value) if isinstance(inner, Number) else FunctionCall("-", (inner,))
    c.take_punct("+")
    return _primary(c)


def _primary(c: Cursor) -> Expression | None:
    group = c.take_group()
    if group is not None:
        return _parse(group)
    number = c.take_number()
    if number is not None:
        following = c.peek()
        return None if following is not None and following.text == "." else Number(number)
    token = c.peek()
    if token is None or token.kind == "punct":
        return None
    c.at += 1
    if token.is_text:
        return Text(token.text)
    arguments = c.take_group() if token.kind == "word" else None
    if arguments is None:
        return ColumnOf(token.text)
    return _call(token.text.lower(), arguments)


def _call(name: str, tokens: list[Token]) -> Expression | None:
    if name == "extract":
        c = Cursor(tokens, "")
        unit = c.take_name()
        inner = _parse(c.rest) if unit is not None and c.take_words("FROM") else None
        return None if inner is None or unit is None else FunctionCall(f"extract {unit.lower()}", (inner,))
    arguments = tuple(_parse(part) for part in split_commas(tokens))
    if any(part is None for part in arguments):
        return None
    understood = tuple(part for part in arguments if part is not None)
    if name == "mod" and len(understood) == 2:
        return FunctionCall("%", understood)
    return FunctionCall({"day": "dayofmonth", "ceil": "ceiling"}.get(name, name), understood)


def whole_number(text: str) -> int | None:
    """Returns the whole number that an expression of constants is; None if it is not understood."""
    parsed = _parse(tokenize(text))
    return None if parsed is None else _constant(parsed)


def _day(text: str) -> date | None:
    """Returns the day of a literal; None if it is not in the form 2026-01-31."""
    try:
        return date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        return None


def _constant(expression: Expression) -> int | None:
    """Returns the value of a bound; None if it depends on the session, or is not certain."""
    match expression:
        case Number(value):
            return value
        case FunctionCall(("to_days" | "year") as name, (Text(text),)):
            day = _day(text)
            if day is None:
                return None
            return day.toordinal() + _DAYS_OF_YEAR_0 if name == "to_days" else day.year
        case FunctionCall("datediff", (Text(later), Text(earlier))):
            until, since = _day(later), _day(earlier)
            return None if until is None or since is None else (until - since).days
        case FunctionCall(("+" | "-" | "*") as name, (left, right)):
            first, second = _constant(left), _constant(right)
            if first is None or second is None:
                return None
            return first + second if name == "+" else first - second if name == "-" else first * second
    return None


# --- partitions


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition."""

    name: str
    values: tuple[tuple[str, ...], ...] = ()
    """RANGE: one tuple, the bounds that the rows lie below. LIST: a tuple for each member. A tuple has a value for each
    column: a number, a text in single quotes, ``NULL``, ``MAXVALUE``; ``DEFAULT`` alone for rows that no other
    partition takes. Empty for HASH."""
    subpartitions: tuple[str, ...] = ()
    """Their names, if the definition gives them."""

    def names_of_subpartitions(self, count: int) -> tuple[str, ...]:
        return self.subpartitions or tuple(f"{self.name}sp{number}" for number in range(count))


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partitions of a table, in their order."""

    method: str
    """``RANGE``, ``LIST``, ``RANGE COLUMNS``, ``LIST COLUMNS``, ``HASH`` or ``LINEAR HASH``."""
    expressions: tuple[Expression, ...]
    """One expression; for COLUMNS the columns."""
    partitions: tuple[Partition, ...]
    sub_method: str = ""
    """``HASH`` or ``LINEAR HASH`` of subpartitions, ``KEY`` for others, whose place is not computed."""
    sub_expression: Expression | None = None
    sub_count: int = 0
    """The number of subpartitions in each partition."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that tell a row's partition and subpartition."""
        expressions = [*self.expressions, *([] if self.sub_expression is None else [self.sub_expression])]
        return tuple(dict.fromkeys(name for expression in expressions for name in columns_of(expression)))

    def index(self, name: str) -> int | None:
        """Returns the place of a partition, whose name may be in letters of either case; None if there is none."""
        names = [partition.name.lower() for partition in self.partitions]
        return names.index(name.lower()) if name.lower() in names else None

    def subpartition(self, name: str) -> tuple[int, int] | None:
        """Returns the place of a subpartition: of its partition, and within that; None if there is none."""
        for at, partition in enumerate(self.partitions):
            names = [sub.lower() for sub in partition.names_of_subpartitions(self.sub_count)]
            if name.lower() in names:
                return at, names.index(name.lower())
        return None

    def has(self, name: str) -> bool:
        """Whether there is a partition or subpartition of this name."""
        return self.index(name) is not None or self.subpartition(name) is not None

    def to_text(self) -> str:
        """Returns the clause behind PARTITION BY."""
        if "COLUMNS" in self.method:
            text = f"{self.method} ({', '.join(map(_shown, self.expressions))})"
        else:
            text = f"{self.method} ({_shown(self.expressions[0])})"
        if self.sub_method:
            what = "" if self.sub_expression is None else _shown(self.sub_expression)
            text += f" SUBPARTITION BY {self.sub_method} ({what}) SUBPARTITIONS {self.sub_count}"
        return f"{text} ({', '.join(map(self._partition_text, self.partitions))})"

    def _partition_text(self, partition: Partition) -> str:
        text = f"PARTITION {_quoted(partition.name)}"
        if partition.values == ((DEFAULT,),):
            text += " DEFAULT"
        elif partition.values:
            tuples = [", ".join(values) for values in partition.values]
            if self.method.startswith("RANGE"):
                text += f" VALUES LESS THAN ({tuples[0]})"
            else:
                listed = tuples if len(self.expressions) == 1 else [f"({values})" for values in tuples]
                text += f" VALUES IN ({', '.join(listed)})"
        if partition.subpartitions:
            text += f" ({', '.join(f'SUBPARTITION {_quoted(name)}' for name in partition.subpartitions)})"
        return text

    def is_same(self, other: Partitions | None) -> bool:
        """Whether both definitions mean the same; servers print the members of a list in an order of their own."""
        return other is not None and self._in_order() == other._in_order()

    def _in_order(self) -> Partitions:
        # Names of subpartitions that are the usual ones may be printed or not.
        return replace(
            self,
            partitions=tuple(
                replace(
                    partition,
                    values=tuple(sorted(partition.values)),
                    subpartitions=partition.names_of_subpartitions(self.sub_count),
                )
                for partition in self.partitions
            ),
        )

    def with_renamed(self, names: Mapping[str, str]) -> Partitions:
        """Returns the definition with new names of columns, by the old ones in lower case."""
        sub = self.sub_expression
        return replace(
            self,
            expressions=tuple(_renamed(expression, names) for expression in self.expressions),
            sub_expression=None if sub is None else _renamed(sub, names),
        )

    def without(self, names: Sequence[str]) -> Partitions:
        """Returns the definition without the partitions of these names; names that are not there are left out."""
        gone = {name.lower() for name in names}
        return replace(
            self, partitions=tuple(partition for partition in self.partitions if partition.name.lower() not in gone)
        )

    def reduced(self, names: Sequence[str]) -> Partitions:
        """Returns as much of the definition as tells which rows lie in these partitions or subpartitions: of RANGE
        these and the ones before them, else all."""
        if not self.method.startswith("RANGE"):
            return self
        places: set[int] = set()
        for name in names:
            at = self.index(name)
            sub = self.subpartition(name) if at is None else None
            at = sub[0] if sub is not None else at
            places.update(() if at is None else (at - 1, at))
        return replace(
            self, partitions=tuple(partition for at, partition in enumerate(self.partitions) if at in places)
        )


@lru_cache(maxsize=256)
def read_partitions(text: str) -> Partitions | None:
    """Returns the partitions of a clause, from behind PARTITION BY to its end; None if it is not understood."""
    return take_partitions(Cursor(tokenize(text), ""))


@lru_cache(maxsize=256)
def shown_partitions(sql: str) -> str | None:
    """Returns the clause of a table from its CREATE TABLE as the server prints it, in the form of
    :meth:`Partitions.to_text`; None if it has none, or if it is not understood."""
    c = Cursor(tokenize(sql), "")
    while not c.at_end():
        if c.take_words("PARTITION", "BY"):
            partitions = take_partitions(c)
            return None if partitions is None else partitions.to_text()
        if c.take_group() is None:
            c.at += 1
    return None


def take_partitions(c: Cursor) -> Partitions | None:
    """Takes the clause behind PARTITION BY to the end of the text. Returns None if it is not understood."""
    method = _take_method(c)
    if method not in _METHODS:
        return None
    group = c.take_group()
    if group is None:
        return None
    parts = split_commas(group) if "COLUMNS" in method else [group]
    parsed = [_parse(part) for part in parts]
    expressions = tuple(expression for expression in parsed if expression is not None)
    if len(expressions) < len(parsed) or not all(columns_of(expression) for expression in expressions):
        return None
    if "COLUMNS" in method and not all(isinstance(expression, ColumnOf) for expression in expressions):
        return None
    count = c.take_number() if c.take_words("PARTITIONS") else None
    partitions = Partitions(method, expressions, ())
    if c.take_words("SUBPARTITION", "BY"):
        sub_method, sub_group = _take_method(c), c.take_group()
        if sub_method is None or sub_group is None:
            return None
        sub = _parse(sub_group) if sub_method in ("HASH", "LINEAR HASH") else None
        sub_count = c.take_number() if c.take_words("SUBPARTITIONS") else None
        kept = sub_method if sub is not None else "KEY"
        partitions = replace(partitions, sub_method=kept, sub_expression=sub, sub_count=sub_count or 1)
    group = c.take_group()
    listed = None if group is None else _listed(group)
    if not c.at_end() or (group is not None and listed is None):
        return None
    if listed is None:
        if "HASH" not in method:
            return None
        listed = tuple(Partition(f"p{number}") for number in range(count or 1))
    if partitions.sub_method:
        named = {len(partition.subpartitions) for partition in listed if partition.subpartitions}
        partitions = replace(partitions, sub_count=named.pop() if named else partitions.sub_count)
    partitions = replace(partitions, partitions=listed)
    return partitions if all(is_member(partitions, partition) for partition in listed) else None


def is_member(partitions: Partitions, partition: Partition) -> bool:
    """Whether a partition is defined as those of its table have to be."""
    width = len(partitions.expressions)
    if partitions.method.startswith("RANGE"):
        return len(partition.values) == 1 and len(partition.values[0]) == width and partition.values[0] != (DEFAULT,)
    if partitions.method.startswith("LIST"):
        return bool(partition.values) and (
            partition.values == ((DEFAULT,),) or all(len(value) == width for value in partition.values)
        )
    return not partition.values


def _take_method(c: Cursor) -> str | None:
    """Takes ``RANGE COLUMNS``, ``LINEAR HASH``, ``KEY ALGORITHM = 2``…"""
    linear = "LINEAR " if c.take_words("LINEAR") else ""
    word = c.take_any("RANGE", "LIST", "HASH", "KEY")
    if word is None:
        return None
    if word == "KEY" and c.take_words("ALGORITHM"):
        c.take_punct("=")
        c.take_number()
    return f"{linear}{word}{' COLUMNS' if c.take_words('COLUMNS') else ''}"


def _listed(group: list[Token]) -> tuple[Partition, ...] | None:
    parsed = [_partition(Cursor(part, "")) for part in split_commas(group)]
    listed = tuple(partition for partition in parsed if partition is not None)
    return listed if len(listed) == len(parsed) and listed else None


def take_listed(c: Cursor) -> tuple[Partition, ...] | None:
    """Takes ``(PARTITION a VALUES …, PARTITION b …)``; None if it is not understood."""
    group = c.take_group()
    return None if group is None else _listed(group)


def take_partition(tokens: list[Token]) -> Partition | None:
    """Returns the partition that ``PARTITION name VALUES …`` defines; None if it is not understood."""
    return _partition(Cursor(tokens, ""))


def _partition(c: Cursor) -> Partition | None:
    name = c.take_name() if c.take_words("PARTITION") else None
    if name is None:
        return None
    values: tuple[tuple[str, ...], ...] = ()
    if c.take_words("DEFAULT"):
        values = ((DEFAULT,),)
    elif c.take_words("VALUES", "LESS", "THAN"):
        group = c.take_group()
        bounds = [[MAXVALUE]] if group is None and c.take_words("MAXVALUE") else None
        if group is not None:
            bounds = [[_value(part) or "" for part in split_commas(group)]]
        if bounds is None or not all(bounds[0]):
            return None
        values = (tuple(bounds[0]),)
    elif c.take_words("VALUES", "IN"):
        group = c.take_group()
        members = [] if group is None else [_member(part) for part in split_commas(group)]
        if not members or not all(map(all, members)):
            return None
        values = tuple(tuple(member) for member in members)
    subpartitions: tuple[str, ...] = ()
    while (token := c.peek()) is not None:  # COMMENT = 'text', ENGINE = InnoDB, and the subpartitions
        group = c.take_group()
        if group is not None:
            named = [_subpartition(part) for part in split_commas(group)]
            if subpartitions or not all(named):
                return None
            subpartitions = tuple(name for name in named if name is not None)
        elif token.kind == "punct" and token.text != "=":
            return None
        else:
            c.at += 1
    return Partition(name, values, subpartitions)


def _subpartition(tokens: list[Token]) -> str | None:
    c = Cursor(tokens, "")
    return c.take_name() if c.take_words("SUBPARTITION") else None


def _member(tokens: list[Token]) -> list[str]:
    """Returns the values of a member of a list; ``""`` for one that is not understood."""
    c = Cursor(tokens, "")
    group = c.take_group()
    if group is not None and c.at_end() and (len(split_commas(group)) > 1):
        return [_value(part) or "" for part in split_commas(group)]
    return [_value(tokens) or ""]


def _value(tokens: list[Token]) -> str | None:
    """Returns a bound or member in the form of :attr:`Partition.values`; None if it is not understood."""
    c = Cursor(tokens, "")
    for word in (MAXVALUE, NULL, DEFAULT):
        if c.at_words(word) and len(tokens) == 1:
            return word
    literal = take_literal(c)
    if literal is not None and c.at_end() and literal.kind == "text" and UNREADABLE not in literal.text:
        return _text(literal.text)
    expression = _parse(tokens)
    number = None if expression is None else _constant(expression)
    return None if number is None else str(number)


# --- changes


def with_added(partitions: Partitions, added: Sequence[Partition], count: int) -> Partitions | None:
    """Returns the definition after ADD PARTITION: with these at the end or, of HASH, with so many more. None if that
    contradicts it."""
    if not added:
        begin = len(partitions.partitions)
        added = [Partition(f"p{number}") for number in range(begin, begin + count)]
    if not added or any(
        partitions.index(partition.name) is not None or not is_member(partitions, partition) for partition in added
    ):
        return None
    return replace(partitions, partitions=(*partitions.partitions, *added))


def reorganized(partitions: Partitions, names: Sequence[str], into: Sequence[Partition]) -> Partitions | None:
    """Returns the definition with other partitions in place of those of these names; None if that contradicts it."""
    places = sorted({at for name in names if (at := partitions.index(name)) is not None})
    if (
        len(places) != len(names)
        or not names
        or not into
        or not all(is_member(partitions, partition) for partition in into)
    ):
        return None
    if partitions.method.startswith("RANGE") and places != list(range(places[0], places[0] + len(places))):
        return None
    kept = [partition for at, partition in enumerate(partitions.partitions) if at not in places]
    kept[places[0] : places[0]] = into
    lower_names = [partition.name.lower() for partition in kept]
    return None if len(lower_names) != len(set(lower_names)) else replace(partitions, partitions=tuple(kept))


def coalesced(partitions: Partitions, count: int) -> Partitions | None:
    """Returns the definition after COALESCE PARTITION; None if that contradicts it."""
    left = len(partitions.partitions) - count
    if "HASH" not in partitions.method or left < 1:
        return None
    return replace(partitions, partitions=partitions.partitions[:left])
