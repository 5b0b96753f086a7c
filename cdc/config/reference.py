"""Renders the sections of the configuration for readers: as a commented YAML file, a Markdown page and a JSON schema.

Keys, types, defaults and descriptions come from the models alone: a key's docstring is its description, and
:class:`~cdc.config.values.Doc` adds the meaning of each choice and an example. ``cdc init`` writes the commented file;
``make docs-reference`` writes the page, the schema and ``examples/shop.yaml``.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, get_args

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cdc.base.units import human_bytes
from cdc.config.descriptions import description_of
from cdc.config.destination import DestinationConfig
from cdc.config.tables import ApplyOverrides
from cdc.config.values import DURATION_PATTERN, Doc

_WIDTH = 110
_OVERRIDES = "tables.overrides"
_DURATION, _BYTES = "duration", "bytes"
_VARIABLE = r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$"
_LONG_CHOICE = 14
"""Choices that are longer than this have their meaning on the next line."""


_SHORT_FORMS = (("StoreConfig", "archive"),)
"""Sections for which a single text may stand, by model and key."""


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
        below = _section_type(model.model_fields[parent])
        if below is None:
            raise KeyError(path)
        model = below
    field = model.model_fields[name]
    if field.is_required():
        raise KeyError(path)
    return yaml.safe_load(_key(path, model, name, model.model_json_schema()["properties"][name]).default)


def _sections(model: type[BaseModel], path: str) -> Iterator[SectionOfKeys]:
    properties = model.model_json_schema(by_alias=False)["properties"]
    below: list[tuple[str, type[BaseModel]]] = []
    keys: list[ConfigKey] = []
    for name, info in model.model_fields.items():
        inner = _section_type(info)
        at = f"{path}.{name}" if path else name
        if inner is not None:
            below.append((at, inner))
        else:
            keys.append(_key(at, model, name, properties[name]))
    if path:
        yield SectionOfKeys(path, _prose(inspect.getdoc(model)), tuple(keys))
    for at, inner in below:
        yield from _sections(inner, at)
    if path == "tables":
        yield from _sections(ApplyOverrides, f"{_OVERRIDES}.DB.TABLE")


def _section_type(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a key that is a section."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _key(path: str, model: type[BaseModel], name: str, schema: Mapping[str, Any]) -> ConfigKey:
    field = model.model_fields[name]
    doc = next((item for item in field.metadata if isinstance(item, Doc)), Doc())
    kind = _kind(path, schema)
    written = "" if field.is_required() else flow(_written(path, kind, _default(field)))
    return ConfigKey(path, kind, _prose(description_of(model, name)), written, doc)


def _default(field: FieldInfo) -> Any:
    default = field.get_default(call_default_factory=True)
    return None if default is PydanticUndefined else default


def _prose(text: str | None) -> str:
    return " ".join((text or "").split())


def _kind(path: str, schema: Mapping[str, Any]) -> str:
    """The type of a key's values, from its JSON schema."""
    options = [schema, *schema.get("anyOf", ())]
    options += [inner for option in options[1:] for inner in option.get("anyOf", ())]
    if any(option.get("pattern") == DURATION_PATTERN for option in options):
        return _DURATION
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
        return _BYTES if path.endswith("_bytes") else "whole number"
    if "boolean" in types:
        return "boolean"
    return "number" if "number" in types else "mapping"  # a section of its own is a reference to its model


def _written(path: str, kind: str, value: Any) -> Any:
    """A value as a user would write it: durations with their unit, paths as text, tuples as lists, null as null."""
    if kind == "choice" and value == "null":
        return None
    if kind == _DURATION and isinstance(value, float) and not path.endswith("_s"):
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
        if section.path.startswith(_OVERRIDES):
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


def example() -> str:
    """Returns ``examples/shop.yaml``: every key, with its example or its default."""
    values: dict[str, Any] = {}
    commented_out: dict[str, Any] = {}
    for section in sections():
        for key in section.keys:
            shown = yaml.safe_load(key.default) if key.doc.example is None else key.doc.example
            (commented_out if key.doc.only_with or key.doc.instead_of else values)[key.path] = shown
    return render_yaml(
        Template(
            values=values,
            commented_out=commented_out,
            head=(
                "yaml-language-server: $schema=../docs/reference/conf.schema.json",
                _EXAMPLE_HEAD,
                VALUES_IN_WORDS,
            ),
        )
    )


_EXAMPLE_HEAD = (
    "Every key of a configuration file, with its default unless an example shows more. Most files need a quarter of "
    "this: `cdc init` writes such a file for your server. Copied to conf/shop.yaml, this makes two Airflow DAGs: "
    "capture_shop, which always runs, and apply_shop."
)
VALUES_IN_WORDS = (
    "A duration is a number of seconds, or a number with a unit: 30s, 15m, 72h, 7d. A size is a number of bytes. "
    "${NAME} is replaced from the environment."
)


# --- the page


def render_markdown() -> str:
    """Returns the page of settings."""
    lines = [
        "# Settings",
        "",
        "<!-- Written by `make docs-reference` from cdc/config: change the docstrings there. -->",
        "",
        *_wrapped(
            "This page lists every key of a configuration file `conf/DEST.yaml`. `cdc init` writes a first file, and "
            "`cdc check` examines it; `examples/shop.yaml` shows every key in its place."
        ),
        "",
        *_wrapped(VALUES_IN_WORDS.replace("${NAME}", "`${NAME}`")),
        "",
        *_wrapped(
            "An unknown key, a wrong value, or two values that contradict each other end every command with exit code "
            "2 and a message that names the file, the key, the value and the remedy."
        ),
        "",
        *_wrapped(
            "Editors complete and check these files by the JSON schema [conf.schema.json](conf.schema.json). The YAML "
            "language server takes its path, relative to the file, from the first line:"
        ),
        "",
        "```yaml",
        "# yaml-language-server: $schema=../docs/reference/conf.schema.json",
        "```",
    ]
    for section in sections():
        lines += ["", f"{'##' if '.' not in section.path else '###'} {section.path}", ""]
        lines += [*_wrapped(section.description), ""]
        lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
        lines += [_row(key) for key in section.keys]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def _row(key: ConfigKey) -> str:
    meaning = key.description
    if key.doc.choices:
        meaning = f"{meaning[:-1]}:" if meaning.endswith(".") else meaning
        meaning += "".join(f"<br>`{choice}`: {text}" for choice, text in key.doc.choices.items())
    notes = []
    if key.doc.instead_of:
        notes.append(f"It replaces `{key.doc.instead_of}`.")
    if key.doc.only_with:
        notes.append(f"Only with `{key.doc.only_with}`.")
    if notes:
        meaning = "<br>".join([meaning, *notes]) if key.doc.choices else " ".join([meaning, *notes])
    written = f"`{key.default}`" if key.default else "required"
    if key.kind == _BYTES and key.default.isdigit():
        written += f" ({human_bytes(int(key.default)).replace('.0 ', ' ')})"
    return f"| `{key.name}` | {key.kind} | {written} | {meaning} |".replace("||", "\\|\\|")


def section_table(page: str) -> str:
    """Returns a Markdown table of the sections, with links into the page of settings at the path ``page``."""
    required = {name for name, info in DestinationConfig.model_fields.items() if info.is_required()}
    lines = ["| section | configures | required |", "|---|---|---|"]
    for section in sections():
        if section.path.startswith(_OVERRIDES):
            continue
        anchor = section.path.replace(".", "")
        mark = "yes" if section.path in required else ""
        lines.append(f"| [`{section.path}`]({page}#{anchor}) | {section.description} | {mark} |")
    return "\n".join(lines) + "\n"


# --- the schema


def json_schema() -> dict[str, Any]:
    """Returns the JSON schema of a configuration file. It accepts ``${NAME}`` in place of any single value."""
    schema = DestinationConfig.model_json_schema()
    _without_titles(schema)
    definitions = schema["$defs"]
    definitions["Variable"] = {
        "description": "A variable of the environment.",
        "type": "string",
        "pattern": _VARIABLE,
    }
    for model in _models(DestinationConfig):
        if model is not DestinationConfig and model.__name__ not in definitions:
            continue  # its values have a schema of their own
        target = schema if model is DestinationConfig else definitions[model.__name__]
        target["description"] = _prose(target.get("description"))
        for name, info in model.model_fields.items():
            if _section_type(info) is None:
                target["properties"][name] = _property(
                    _key(name, model, name, target["properties"][name]), target, name
                )
            else:
                target["properties"][name].pop("default", None)
                if (text := description_of(model, name)) is not None:
                    target["properties"][name]["description"] = text
    for model_name, name in _SHORT_FORMS:
        archive_schema = definitions[model_name]["properties"][name]
        section = {"$ref": archive_schema.pop("$ref")}
        archive_schema["anyOf"] = [section, {"type": "string"}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Towpath: conf/DEST.yaml", **schema}


def _property(key: ConfigKey, model: Mapping[str, Any], name: str) -> dict[str, Any]:
    rendered = dict(model["properties"][name])
    rendered.pop("default", None)
    rendered.pop("description", None)
    if key.kind in (_DURATION, _BYTES, "choice", "whole number", "number", "boolean"):
        options = rendered["anyOf"] if rendered.keys() == {"anyOf"} else [rendered]
        rendered = {"anyOf": [*options, {"$ref": "#/$defs/Variable"}]}
    text = key.description
    if key.doc.choices:
        text = " ".join([text, *(f"{choice}: {meaning}." for choice, meaning in key.doc.choices.items())])
    described: dict[str, Any] = {"description": text}
    if not key.required:
        described["default"] = yaml.safe_load(key.default)
    if key.doc.example is not None:
        described["examples"] = [key.doc.example]
    return {**described, **rendered}


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model and all models in its keys."""
    yield model
    for info in model.model_fields.values():
        for inner in _inner_models(info.annotation):
            yield from _models(inner)


def _inner_models(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _inner_models(part)


def _without_titles(schema: Any) -> None:
    """Removes the titles that pydantic makes of the names of keys."""
    if isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        for value in schema.values():
            _without_titles(value)
    elif isinstance(schema, list):
        for value in schema:
            _without_titles(value)


def render_schema() -> str:
    """Returns the text of the JSON schema."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
