"""Translates pydantic's validation errors into messages for users: key, value, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from cdc.base.errors import ConfigError
from cdc.base.log import hide_password
from cdc.base.validation import suggestion

_ONE_START = "contradicts the key beside it; keep one of file, gtid and time"
_BY_PERIOD = "is not a key: kind: mixed, for a store in memory, is stored each second; leave it out"
_WITHOUT_EFFECT = {
    "source.start.gtid": _ONE_START,
    "source.start.time": _ONE_START,
    "store.standby.max_behind_bytes": "has no effect, since capture never waits for a standby while it reads; leave it "
    "out (programs of your own may set it in cdc.copies.standby.settings.MasterSettings)",
    "meta.flush": _BY_PERIOD,
    "meta.period_s": _BY_PERIOD,
}
"""Keys that have no effect today, or none beside another key, and the reason. They are refused, because a key that is
accepted is a promise."""


_WORDS = {
    "string_type": "must be text",
    "path_type": "must be the path of a folder or file",
    "tuple_type": "must be a list: [one, two]",
    "dict_type": "must be a section of keys",
    "model_type": "must be a section of keys",
    "model_attributes_type": "must be a section of keys",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}
_LIMITS = {
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
}
_VERBS = ("must ", "has ", "is ", "needs ", "names ")
_SECRET = re.compile(r"pass|secret|token", re.IGNORECASE)


def explain(error: ValidationError, file: Path, model: type[BaseModel]) -> ConfigError:
    """Returns one error with a clause for each finding: key, value, and what to write instead."""
    findings: list[str] = []
    for item in error.errors():
        steps = _steps(item["loc"])
        text = _finding(".".join(steps), steps, item["type"], item["msg"], item.get("ctx") or {}, item["input"], model)
        if text not in findings:
            findings.append(text)
    return ConfigError("; ".join(findings), place=str(file))


def _steps(loc: tuple[int | str, ...]) -> list[str]:
    steps = [str(step) for step in loc]
    if steps[:2] == ["source", "start"]:
        del steps[2:3]  # the tag of the union's member, which users do not write
    return steps


def _finding(
    key: str, steps: list[str], kind: str, message: str, context: Mapping[str, Any], value: Any, model: type[BaseModel]
) -> str:
    shown = "" if isinstance(value, dict | list | tuple | BaseModel) else f" {_show(steps, value)}"
    if kind == "extra_forbidden":
        # A key of an override is refused for the same reason as the key of `apply`.
        plain = f"apply.{steps[-1]}" if steps[:2] == ["tables", "overrides"] else key
        if plain in _WITHOUT_EFFECT:
            return f"{key}: {_WITHOUT_EFFECT[plain]}"
        keys = _known_keys(steps[:-1], model)
        hint = f" (known here: {', '.join(keys)})" if keys else ""
        return f"{key}: unknown key; {suggestion(steps[-1], keys) or 'remove it, or correct its name'}{hint}"
    if kind == "missing":
        return f"{key}: is missing; add it"
    if kind == "literal_error":
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ")
        words = f"must be one of {choices}"
        if isinstance(value, str) and (nearest := suggestion(value, choices.split(", "))):
            words += f"; {nearest}"
    elif kind in _LIMITS:
        words = _LIMITS[kind].format_map(context)
    elif kind in _WORDS:
        words = _WORDS[kind]
    else:
        words = hide_password(message.removeprefix("Value error, "))
    if value is None and kind != "value_error":
        return f"{key}: has no value, but {words}"
    link = "" if not shown or words.startswith(_VERBS) else ":"
    return f"{key}:{shown}{link} {words}"


def _show(steps: list[str], value: Any) -> str:
    if steps and _SECRET.search(steps[-1]):
        return "***"
    return hide_password(repr(value))


def _known_keys(steps: list[str], model: type[BaseModel]) -> list[str]:
    """Returns the keys of the section at the path ``steps``."""
    annotation: Any = model
    for step in steps:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(step)
            annotation = None if field is None else field.annotation
        else:  # a mapping by free names (overrides), whose values are sections
            annotation = get_args(annotation)[-1] if get_args(annotation) else None
    return list(dict.fromkeys(name for section in _sections(annotation) for name in section.model_fields))


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yields the sections that an annotation names, those of unions included."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections(part)
