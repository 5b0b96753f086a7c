"""From the text of a configuration file to plain data, and from what pydantic finds wrong to a user's words.

Used by :mod:`cdc.config.files` alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from cdc.errors import ConfigError
from cdc.log import hide_password

_ENV = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

_NOT_YET = "is not there yet; leave it out"
_BY_PERIOD = (
    "a meta that is written by period lives in the memory of one process, and capture and apply are two; leave it out "
    "(a program of your own may use cdc.event_store.periodic_meta.PeriodicMeta)"
)
_MEMORY_STORE = "belongs to a store in memory, which lives inside one process; leave it out"
_WITHOUT_EFFECT = {
    "source.start.gtid": "is not there yet; give file and pos, or write start: earliest or start: now",
    "source.start.time": "is not there yet; give file and pos, or write start: earliest or start: now",
    "source.standbys": "failover to another source server is not there yet; leave it out",
    "store.buffer_size": _MEMORY_STORE,
    "store.buffer_unit_bytes": _MEMORY_STORE,
    "store.batch_mode": _MEMORY_STORE,
    "store.standby.max_behind_bytes": "has no effect, since capture never waits for a standby while it reads; leave it "
    "out (cdc.replication.master.Master has it for programs of your own)",
    "meta.flush": _BY_PERIOD,
    "meta.period_s": _BY_PERIOD,
    "apply.schema_changes": "there is no choice yet; leave it out: new tables and new nullable columns without a "
    "default are applied, and any other change of a table's columns stops apply",
    "apply.on_truncate": "there is no choice yet; leave it out: TRUNCATE of a captured table stops apply",
    "apply.on_drop": "there is no choice yet; leave it out: DROP of a captured table stops apply",
    "apply.on_unknown_effect": _NOT_YET,
    "apply.catalog": _NOT_YET,
    "apply.shared": _NOT_YET,
}
"""Keys that have no effect today, and why. They are refused, because a key that is accepted promises something."""


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key given twice, of which PyYAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} stands there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_yaml(text: str, file: Path) -> dict[str, Any]:
    """The sections of the file, ``${NAME}`` replaced. Raises ConfigError."""
    try:
        data = yaml.load(text, _Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise ConfigError(f"is not valid YAML: {error.problem}", place=f"{file}{line}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"is not valid YAML: {' '.join(str(error).split())}", place=str(file)) from None
    if not isinstance(data, dict) or not data:
        raise ConfigError("holds no sections", place=str(file), remedy="Write it with `cdc init`.")
    replaced: dict[str, Any] = _replace_env(data, file, "")
    return replaced


def _replace_env(value: Any, file: Path, key: str) -> Any:
    if isinstance(value, dict):
        return {k: _replace_env(v, file, f"{key}.{k}" if key else str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_replace_env(v, file, f"{key}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def one(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigError(
                f"the environment variable {match[1]} is not set",
                place=f"{file}: {key}",
                remedy=f"Set {match[1]}, or write the value itself.",
            )
        return found

    replaced = _ENV.sub(one, value)
    if replaced == value or not _ENV.fullmatch(value):
        return replaced
    try:
        number = yaml.safe_load(replaced)  # ${N} alone may stand for a number or a boolean
    except yaml.YAMLError:
        return replaced
    return number if isinstance(number, bool | int | float) else replaced


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
    """All that is wrong, one clause for each finding: key, value, and what to write instead."""
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
        del steps[2:3]  # the name of the union's member, which is none of the user's business
    return steps


def _finding(
    key: str, steps: list[str], kind: str, message: str, context: Mapping[str, Any], value: Any, model: type[BaseModel]
) -> str:
    shown = "" if isinstance(value, dict | list | tuple | BaseModel) else f" {_show(steps, value)}"
    if kind == "extra_forbidden":
        # What holds of a key of `apply` holds of the same key in an override of a table.
        plain = f"apply.{steps[-1]}" if steps[:2] == ["tables", "overrides"] else key
        if plain in _WITHOUT_EFFECT:
            return f"{key}: {_WITHOUT_EFFECT[plain]}"
        known = _known_keys(steps[:-1], model)
        hint = f" (known here: {', '.join(known)})" if known else ""
        return f"{key}: unknown key (value{shown or ' …'}); remove it or correct its name{hint}"
    if kind == "missing":
        return f"{key}: is missing; add it"
    if kind == "literal_error":
        words = f"must be one of {str(context['expected']).replace(chr(39), '').replace(' or ', ', ')}"
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
    """The keys of the section at ``steps``."""
    found: Any = model
    for step in steps:
        if isinstance(found, type) and issubclass(found, BaseModel):
            field = found.model_fields.get(step)
            found = None if field is None else field.annotation
        else:  # a mapping by free names (overrides), whose values are sections
            found = get_args(found)[-1] if get_args(found) else None
    members = [found, *get_args(found)]
    sections = [m for m in members if isinstance(m, type) and issubclass(m, BaseModel)]
    return list(sections[0].model_fields) if sections else []
