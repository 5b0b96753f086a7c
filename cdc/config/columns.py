"""Policies for columns and types, which ``apply`` and the overrides of tables share.

They are ``columns`` (what becomes of a column), ``types`` (what a type becomes in Delta) and ``zero_dates``.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

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
"""The types that can be mapped, each with its default form and its other form in Delta."""

POLICIES = {
    "keep": "the column as it is, as an exception from `apply.columns`",
    "drop": "no such column",
    "null": "the column with null in every row",
    "hash": "HMAC-SHA-256 of the value, with the key of `hash_key_env` or `hash_key_file`",
    "{mask: 4}": "the last 4 characters; each character before them becomes `*`",
    "{rename: name}": "the column under another name",
    "text": "a DATE, DATETIME or TIMESTAMP as the text that SELECT prints, zero dates included",
    "bytes": "the bytes of a text in its own character set",
}
"""The policies for columns as users write them, each with its meaning."""
_WORDS = tuple(word for word in POLICIES if not word.startswith("{"))
_FORMS = "write drop, null, hash, keep, text, bytes, {mask: 4} or {rename: name}"


class ColumnPolicy(Section):
    """The policy of one column."""

    kind: Literal["keep", "drop", "null", "hash", "text", "bytes", "mask", "rename"]
    last: Whole = Field(default=0, ge=0)
    """Number of characters at the end that ``mask`` keeps."""
    name: str = ""
    """Name in Delta that ``rename`` gives."""

    def lake_name(self, name: str) -> str | None:
        """Returns the name in Delta of the source's column; None if it is dropped."""
        return None if self.kind == "drop" else self.name if self.kind == "rename" else name

    def __str__(self) -> str:
        if self.kind == "mask":
            return f"mask: {self.last}"
        return f"rename: {self.name}" if self.kind == "rename" else self.kind


def _column_policy(value: Any) -> Any:
    """Parses what a user writes: a word (YAML reads ``null`` as None), ``{mask: N}`` or ``{rename: name}``."""
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
        raise ValueError(f"needs a value; {_FORMS}")
    raise ValueError(
        f"{value!r} is not a policy; {_FORMS}" if isinstance(value, dict) else f"is not a policy; {_FORMS}"
    )


def _new_name(name: Any) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"rename: {name!r} must be a column's new name")
    if name.lower() in RESERVED or name.lower().startswith("_towpath"):
        raise ValueError(f"rename: {name!r} is a name that Towpath uses itself; choose another")
    return name


def _by_name(value: Any) -> Any:
    """Keys the policies by the column's name in lower case, since MySQL compares names of columns without case."""
    if not isinstance(value, dict):
        return value
    for name, times in Counter(str(name).lower() for name in value).items():
        if times > 1:
            raise ValueError(f"the column {name} is given {times} times; keep one of them")
    return {str(name).lower(): policy for name, policy in value.items()}


def _types(value: Any) -> Any:
    """Checks a mapping like ``{tinyint(1): boolean}`` and writes its types in lower case."""
    if not isinstance(value, dict):
        return value
    forms: dict[str, str] = {}
    for name, to in value.items():
        kind = "".join(str(name).lower().split())
        if kind not in TYPES:
            raise ValueError(f"{name!r} is not a type that can be mapped; choose from {', '.join(TYPES)}")
        if to not in TYPES[kind]:
            raise ValueError(f"{name}: {to!r} must be {TYPES[kind][1]} (or {TYPES[kind][0]}, as without a policy)")
        forms[kind] = to
    return forms


def _null_word(value: Any) -> Any:
    return "null" if value is None else value


def _mask_or_rename(word: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {word: schema}, "required": [word], "additionalProperties": False}


_POLICY_SCHEMA = {
    "anyOf": [
        {"enum": [*_WORDS, None]},
        _mask_or_rename("mask", {"type": "integer", "minimum": 0}),
        _mask_or_rename("rename", {"type": "string", "minLength": 1}),
    ]
}
_TYPES_SCHEMA = {
    "type": "object",
    "properties": {name: {"enum": list(forms)} for name, forms in TYPES.items()},
    "additionalProperties": False,
}
_ZERO_DATES_SCHEMA = WithJsonSchema({"enum": ["null", None, "fail"]})

Columns = Annotated[
    dict[str, Annotated[ColumnPolicy, BeforeValidator(_column_policy), WithJsonSchema(_POLICY_SCHEMA)]],
    BeforeValidator(_by_name),
]
Types = Annotated[dict[str, str], BeforeValidator(_types), WithJsonSchema(_TYPES_SCHEMA)]
ZeroDates = Annotated[Literal["null", "fail"], BeforeValidator(_null_word), _ZERO_DATES_SCHEMA]
TableZeroDates = Annotated[Literal["null", "fail"] | None, BeforeValidator(_null_word), _ZERO_DATES_SCHEMA]
"""``zero_dates`` of a single table, where the key may be absent."""
