"""The settings for readers, made from the models of ``cdc.config``: the page, the JSON schema and ``examples/shop.yaml``."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import yaml
from pydantic import BaseModel

from cdc.base.units import human_bytes
from cdc.config.descriptions import description_of
from cdc.config.destination import DestinationConfig
from cdc.config.reference import (
    BYTES,
    DURATION,
    OVERRIDES,
    VALUES_IN_WORDS,
    ConfigKey,
    SectionOfKeys,
    Template,
    key_of,
    prose,
    render_yaml,
    section_type,
    sections,
)

_VARIABLE = r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$"
_SHORT_FORMS = (("StoreConfig", "archive"),)
"""Sections for which a single text may stand, by model and key."""


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


# --- the page


_MARK = "<!-- Written by `make docs-reference` from cdc/config: change the docstrings there. -->"


def render_pages() -> dict[str, str]:
    """Returns the pages of settings by their file names: one for each section of the first level, and ``index.md``."""
    chapters: dict[str, list[SectionOfKeys]] = {}
    for section in sections():
        chapters.setdefault(section.path.partition(".")[0], []).append(section)
    return {
        "index.md": _index(),
        **{f"{name}.md": _chapter(name, list(parts)) for name, parts in chapters.items()},
    }


def _index() -> str:
    lines = [
        "# Settings",
        "",
        _MARK,
        "",
        *_wrapped(
            "These pages list every key of a configuration file `conf/DEST.yaml`. `cdc init` writes a first file, and "
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
            "Editors complete and check these files by the JSON schema [conf.schema.json](../conf.schema.json). The "
            "YAML language server takes its path, relative to the file, from the first line:"
        ),
        "",
        "```yaml",
        "# yaml-language-server: $schema=../docs/reference/conf.schema.json",
        "```",
        "",
        "## Sections",
        "",
    ]
    return "\n".join(lines) + "\n" + section_table("")


def _chapter(name: str, parts: list[SectionOfKeys]) -> str:
    lines = [f"# Settings: `{name}`", "", _MARK]
    for section in parts:
        lines += ["", f"## {section.path}", "", *_wrapped(section.description), ""]
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
    if key.kind == BYTES and key.default.isdigit():
        written += f" ({human_bytes(int(key.default)).replace('.0 ', ' ')})"
    return f"| `{key.name}` | {key.kind} | {written} | {meaning} |".replace("||", "\\|\\|")


def section_table(folder: str) -> str:
    """Returns a Markdown table of the sections, with links to the pages of settings in ``folder``, which ends with a
    slash unless it is that of the table's own page."""
    required = {name for name, info in DestinationConfig.model_fields.items() if info.is_required()}
    lines = ["| section | configures | required |", "|---|---|---|"]
    for section in sections():
        if section.path.startswith(OVERRIDES):
            continue
        page, anchor = section.path.partition(".")[0], section.path.replace(".", "")
        mark = "yes" if section.path in required else ""
        lines.append(f"| [`{section.path}`]({folder}{page}.md#{anchor}) | {section.description} | {mark} |")
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
        target["description"] = prose(target.get("description"))
        for name, info in model.model_fields.items():
            if section_type(info) is None:
                target["properties"][name] = _property(
                    key_of(name, model, name, target["properties"][name]), target, name
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
    if key.kind in (DURATION, BYTES, "choice", "whole number", "number", "boolean"):
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
