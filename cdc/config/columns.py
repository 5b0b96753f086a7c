"""What a user wants of columns and types: ``columns``, ``types``, ``zero_dates``, and the key of ``hash``."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cdc.config.values import Section, Whole

RESERVED = frozenset(
    {"_op", "_seq", "_row", "_commit_time", "_gtid", "_before", "_deleted", "_valid_from", "_valid_to", "_current"}
)
"""Names of the columns that Towpath adds in any mode, in lower case."""

TYPES: dict[str, tuple[str, str]] = {
    "tinyint(1)": ("number", "boolean"),
    "bit(1)": ("number", "boolean"),
    "time": ("text", "microseconds"),
    "json": ("text", "variant"),
}
"""The types that a policy may map: what they are without one, and with one."""

_FORMS = "write drop, null, hash, keep, text, bytes, {mask: 4} or {rename: name}"
_WORDS = ("keep", "drop", "null", "hash", "text", "bytes")


class ColumnPolicy(Section):
    """What becomes of one column."""

    kind: Literal["keep", "drop", "null", "hash", "text", "bytes", "mask", "rename"]
    last: Whole = Field(default=0, ge=0)
    """mask: how many characters at the end stay as they are."""
    name: str = ""
    """rename: the name in Delta."""

    def __str__(self) -> str:
        if self.kind == "mask":
            return f"mask: {self.last}"
        return f"rename: {self.name}" if self.kind == "rename" else self.kind


def _column_policy(value: Any) -> Any:
    """From the forms that a user writes: a word (YAML reads ``null`` as none), ``{mask: N}``, ``{rename: name}``."""
    if isinstance(value, ColumnPolicy):
        return value
    if value is None:
        return ColumnPolicy(kind="null")
    if isinstance(value, str) and value in _WORDS:
        return ColumnPolicy.model_validate({"kind": value})
    if isinstance(value, dict) and len(value) == 1:
        ((word, argument),) = value.items()
        if word == "mask":
            if not isinstance(argument, int) or isinstance(argument, bool) or argument < 0:
                raise ValueError(f"mask: {argument!r} must be the number of characters to keep at the end, like 4")
            return ColumnPolicy(kind="mask", last=argument)
        if word == "rename":
            return ColumnPolicy(kind="rename", name=_new_name(argument))
    if value in ("mask", "rename"):
        raise ValueError(f"needs more than the word; {_FORMS}")
    raise ValueError(f"{value!r} is no policy; {_FORMS}" if isinstance(value, dict) else f"is no policy; {_FORMS}")


def _new_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"rename: {name!r} must be a column's new name")
    if name.lower() in RESERVED or name.lower().startswith("_towpath"):
        raise ValueError(f"rename: {name!r} is a name that Towpath uses itself; choose another")
    return name


def _by_name(value: Any) -> Any:
    """MySQL's columns have one name however it is written, so policies are kept by the name in lower case."""
    if not isinstance(value, dict):
        return value
    for name, times in Counter(str(name).lower() for name in value).items():
        if times > 1:
            raise ValueError(f"the column {name} stands there {times} times; keep one of them")
    return {str(name).lower(): policy for name, policy in value.items()}


def _types(value: Any) -> Any:
    """``{tinyint(1): boolean}``, checked, types in lower case."""
    if not isinstance(value, dict):
        return value
    found: dict[str, str] = {}
    for name, to in value.items():
        kind = "".join(str(name).lower().split())
        if kind not in TYPES:
            raise ValueError(f"{name!r} is no type that can be mapped; there are {', '.join(TYPES)}")
        if to not in TYPES[kind]:
            raise ValueError(f"{name}: {to!r} must be {TYPES[kind][1]} (or {TYPES[kind][0]}, as without a policy)")
        found[kind] = to
    return found


def _null_word(value: Any) -> Any:
    return "null" if value is None else value


Columns = Annotated[
    dict[str, Annotated[ColumnPolicy, BeforeValidator(_column_policy)]],
    BeforeValidator(_by_name),
]
Types = Annotated[dict[str, str], BeforeValidator(_types)]
ZeroDates = Annotated[Literal["null", "fail"], BeforeValidator(_null_word)]
OwnZeroDates = Annotated[Literal["null", "fail"] | None, BeforeValidator(_null_word)]
"""The same where the key may be absent."""
