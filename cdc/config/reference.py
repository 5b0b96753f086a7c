"""Renders the sections of the configuration as a commented YAML file, for ``cdc init``.

Keys, types, defaults and descriptions come from the models alone: a key's docstring is its description, and
:class:`~cdc.config.values.Doc` adds the meaning of each choice and an example. ``make docs-reference`` makes the page
of settings, the JSON schema and ``examples/shop.yaml`` from the same sections.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cdc.config.descriptions import description_of
from cdc.config.destination import DestinationConfig
from cdc.config.tables import ApplyOverrides
from cdc.config.values import DURATION_PATTERN, Doc

_WIDTH = 110
OVERRIDES = "tables.overrides"
DURATION, BYTES = "duration", "bytes"
_LONG_CHOICE = 14
"""Choices that are longer than this have their meaning on the next line."""
VALUES_IN_WORDS = (
    "A duration is a number of seconds, or a number with a unit: 30s, 15m, 72h, 7d. A size is a number of bytes. "
    "${NAME} is replaced from the environment."
)


@dataclass(frozen=True)
class ConfigKey:
    """A key of the configuration file."""

    path: str
    """The key with its sections: ``store.retain.acked_for``."""
    kind: str
    """The type of its values in words: ``duration``, ``bytes``, ``choice``, ``whole number``, …"""
    description: str
    default: str
    """The default as it is written in YAML; empty if the key is required."""
    doc: Doc

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def required(self) -> bool:
        return not self.default


@dataclass(frozen=True)
class SectionOfKeys:
    """A section of the configuration file, without those below it."""

    path: str
    """``store.retain``; ``tables.overrides.DB.TABLE`` for the settings of single tables."""
    description: str
    keys: tuple[ConfigKey, ...]


def sections() -> list[SectionOfKeys]:
    """Returns all sections in the order of the file, each followed by its sub-sections."""
    return list(_sections(DestinationConfig, ""))


def default(path: str) -> Any:
    """Returns the default of a key by its path, as YAML holds it. Raises KeyError if no key has the path, or it is
    required."""
    *parents, name = path.split(".")
    model: type[BaseModel] = DestinationConfig
    for parent in parents:
        below = section_type(model.model_fields[parent])
        if below is None:
            raise KeyError(path)
        model = below
    field = model.model_fields[name]
    if field.is_required():
        raise KeyError(path)
    return yaml.safe_load(key_of(path, model, name, model.model_json_schema()["properties"][name]).default)


def _sections(model: type[BaseModel], path: str) -> Iterator[SectionOfKeys]:
    properties = model.model_json_schema(by_alias=False)["properties"]
    below: list[tuple[str, type[BaseModel]]] = []
    keys: list[ConfigKey] = []
    for name, info in model.model_fields.items():
        inner = section_type(info)
        at = f"{path}.{name}" if path else name
        if inner is not None:
            below.append((at, inner))
        else:
            keys.append(key_of(at, model, name, properties[name]))
    if path:
        yield SectionOfKeys(path, prose(inspect.getdoc(model)), tuple(keys))
    for at, inner in below:
        yield from _sections(inner, at)
    if path == "tables":
        yield from _sections(ApplyOverrides, f"{OVERRIDES}.DB.TABLE")


def section_type(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a key that is a section."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def key_of(path: str, model: type[BaseModel], name: str, schema: Mapping[str, Any]) -> ConfigKey:
    field = model.model_fields[name]
    doc = next((item for item in field.metadata if isinstance(item, Doc)), Doc())
    kind = _kind(path, schema)
    written = "" if field.is_required() else flow(_written(path, kind, _default(field)))
    return ConfigKey(path, kind, prose(description_of(model, name)), written, doc)


def _default(field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True)
    return None if default is PydanticUndefined else default


def prose(text: str | None) -> str:
    return " ".join((text or "").split())


def _kind(path: str, schema: Mapping[str, Any]) -> str:
    """The type of a key's values, from its JSON schema."""
    options = [schema, *schema.get("anyOf", ())]
    options += [inner for option in options[1:] for inner in option.get("anyOf", ())]
    if any(option.get("pattern") == DURATION_PATTERN for option in options):
        return DURATION
    if any("enum" in option or "const" in option for option in options) or schema.get("oneOf"):
        return "choice"
    types = {str(option["type"]) for option in options if "type" in option}
    if "array" in types:
        return "list"
    if "object" in types:
        return "mapping"
    if "string" in types:
        return "path" if any(option.get("format") == "path" for option in options) else "text"
    if "integer" in types:
        return BYTES if path.endswith("_bytes") else "whole number"
    if "boolean" in types:
        return "boolean"
    return "number" if "number" in types else "mapping"  # a section of its own is a reference to its model


def _written(path: str, kind: str, value: Any) -> Any:
    """A value as a user would write it: durations with their unit, paths as text, tuples as lists, null as null."""
    if kind == "choice" and value == "null":
        return None
    if kind == DURATION and isinstance(value, float) and not path.endswith("_s"):
        return f"{value / 3600:g}h" if value % 3600 == 0 else f"{value:g}s"
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, tuple):
        return [_written(path, kind, item) for item in value]
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return value


class _Dumper(yaml.SafeDumper):
    """Quotes every text with a character that has a meaning somewhere in YAML, as people quote regular expressions."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if re.fullmatch(r"[\w./:@()-]+", text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def flow(value: Any) -> str:
    """Returns a value on one line of YAML."""
    text = yaml.dump([value], Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return text.strip()[1:-1]


# --- the commented file


@dataclass(frozen=True)
class Template:
    """The parts of a commented file."""

    values: Mapping[str, Any]
    """The values by the paths of their keys. Keys without a value are left out."""
    head: Sequence[str]
    """Comments at the top of the file, a paragraph each."""
    commented_out: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that are written as comments."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Further comments, by the path of a section or key."""


def render_yaml(template: Template) -> str:
    """Returns the text of a configuration file, with a comment for every section and key that it holds."""
    lines: list[str] = []
    for paragraph in template.head:
        lines += paragraph.splitlines() if paragraph.startswith("yaml-") else textwrap.wrap(paragraph, _WIDTH)
    lines = [f"# {line}" for line in lines]
    for section in sections():
        if section.path.startswith(OVERRIDES):
            continue
        body = _section_lines(section, template)
        if not body:
            continue
        depth = section.path.count(".")
        if depth == 0:
            lines.append("")
        comment = f"{section.description} {template.notes.get(section.path, '')}".rstrip()
        lines += [*_comment(comment, depth), f"{'  ' * depth}{section.path.rpartition('.')[2]}:", *body]
    return "\n".join(lines) + "\n"


def _section_lines(section: SectionOfKeys, template: Template) -> list[str]:
    lines: list[str] = []
    depth = section.path.count(".") + 1
    for key in section.keys:
        if key.path not in template.values and key.path not in template.commented_out:
            continue
        choices = key.doc.choices
        comment = " ".join(filter(None, [_introduction(key, choices, template), template.notes.get(key.path, "")]))
        lines += [*_comment(comment, depth), *_choice_lines(choices, depth)]
        if key.path in template.values:
            lines += _assignment(key.name, template.values[key.path], depth)
        else:
            lines += [f"{'  ' * depth}# {line}" for line in _assignment(key.name, template.commented_out[key.path], 0)]
    return lines


def _introduction(key: ConfigKey, choices: Mapping[str, str], template: Template) -> str:
    """The description of a key, which ends with a colon if a list of choices follows."""
    text = key.description
    if key.doc.instead_of and key.path in template.commented_out:
        text = f"{text} It replaces `{key.doc.instead_of}`."
    if key.doc.only_with:
        text = f"{text} Only with `{key.doc.only_with}`."
    return f"{text[:-1]}:" if choices and text.endswith(".") else text


def _comment(text: str, depth: int) -> list[str]:
    indent = "  " * depth
    return [f"{indent}# {line}" for line in textwrap.wrap(text, _WIDTH - len(indent), break_long_words=False)]


def _choice_lines(choices: Mapping[str, str], depth: int) -> list[str]:
    indent = "  " * depth
    short = [choice for choice in choices if len(choice) <= _LONG_CHOICE]
    width = max((len(choice) for choice in short), default=4)
    lines: list[str] = []
    for choice, meaning in choices.items():
        if choice in short:
            first = f"{choice:<{width}}   "
        else:
            lines.append(f"{indent}#   {choice}")
            first = " " * (width + 3)
        wrapped = textwrap.wrap(meaning, _WIDTH - len(indent) - 4 - len(first))
        lines += [f"{indent}#   {start}{line}" for start, line in zip([first], wrapped, strict=False)]
        lines += [f"{indent}#   {' ' * len(first)}{line}" for line in wrapped[1:]]
    return lines


def _assignment(name: str, value: Any, depth: int) -> list[str]:
    """``name: value``; lists of several items and mappings of sections have a line for each item."""
    indent = "  " * depth
    if isinstance(value, list | tuple) and len(value) > 1:
        return [f"{indent}{name}:", *(f"{indent}  - {flow(item)}" for item in value)]
    if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
        return [f"{indent}{name}:", *(f"{indent}  {flow(key)}: {flow(item)}" for key, item in value.items())]
    return [f"{indent}{name}: {flow(value)}"]
