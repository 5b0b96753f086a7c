"""The settings as readers see them: the page, the schema, the example and the file of ``cdc init`` follow the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cdc.cli.init import Answers, render
from cdc.config import DestinationConfig, parse, reference
from tests.support import settings
from tests.support.reference import ROOT, pages

FILE = Path("/srv/towpath/conf/shop.yaml")
SCHEMA = settings.json_schema()
INTERFACE = [
    "source.url",
    "source.password_env",
    "source.password_file",
    "source.connection",
    "source.server_id",
    "source.start",
    "tables.include",
    "tables.exclude",
    "tables.overrides",
    "store.kind",
    "store.path",
    "store.flush",
    "store.segment_bytes",
    "store.retain.acked_for",
    "store.retain.max_bytes",
    "meta.kind",
    "meta.path",
    "batch.max_bytes",
    "batch.max_transactions",
    "batch.max_row_events",
    "batch.max_wait_s",
    "batch.lease_s",
    "apply.mode",
    "apply.target",
    "apply.columns",
    "apply.keys",
    "apply.zero_dates",
    "spark.master",
    "spark.remote",
    "spark.conf",
    "airflow.apply_every",
    "airflow.capture_for",
    "airflow.retries",
    "airflow.until",
]
"""The keys that users were promised first, and that have an effect today."""


def answers(**changes: Any) -> Answers:
    given: dict[str, Any] = {
        "name": "shop",
        "url": "mysql://cdc@db.example:3306",
        "password_in_environment": True,
        "password_place": "CDC_SOURCE_PASSWORD",
        "server_id": 123456789,
        "include": (r"shop\..*",),
        "lower_case_table_names": 0,
        "target": "./lake",
        "product": "MySQL 9.1.0",
    }
    return Answers(**given | changes)


def faults(document: Any) -> list[str]:
    return [error.json_path for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(document)]


def test_the_committed_pages_are_up_to_date() -> None:
    stale = [str(path.relative_to(ROOT)) for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "out of date: run `make docs-reference`"


def test_every_key_is_described() -> None:
    keys = [key for section in reference.sections() for key in section.keys]
    assert [key.path for key in keys if not key.description.endswith(".")] == []
    assert [section.path for section in reference.sections() if not section.description.endswith(".")] == []
    page = "\n".join(settings.render_pages().values())
    for key in keys:
        assert f"| `{key.name}` | {key.kind} |" in page
    assert set(INTERFACE) - {key.path for key in keys} == set()


def words(schema: Any) -> set[Any]:
    """Every word that a schema allows, however deep; references are not followed."""
    if isinstance(schema, list):
        return {word for part in schema for word in words(part)}
    if not isinstance(schema, dict):
        return set()
    values = {word for word in [*schema.get("enum", ()), schema.get("const")] if word is not None}
    return values.union(*(words(value) for name, value in schema.items() if name not in ("enum", "const")))


def test_explained_values_are_the_allowed_ones() -> None:
    for section in reference.sections():
        if section.path.startswith("tables.overrides"):
            continue  # its keys refer to those of apply
        model: Any = SCHEMA
        for name in section.path.split("."):
            definition = model["properties"][name]
            definition = definition.get("anyOf", [definition])[0]  # a text may stand for some sections
            model = SCHEMA["$defs"][definition["$ref"].rpartition("/")[2]]
        for key in section.keys:
            allowed = words(model["properties"][key.name]) - words(model["properties"][key.name].get("properties"))
            if not key.doc.choices:
                assert allowed <= {"file", "number", "text", "boolean", "microseconds", "variant"}, key.path
                continue
            assert allowed - set(key.doc.choices) == set(), f"{key.path}: not explained"
            for choice in key.doc.choices:
                document: Any = yaml.safe_load(choice) if key.path != "apply.columns" else {"a": yaml.safe_load(choice)}
                for name in reversed(key.path.split(".")):
                    document = {name: document}
                wrong = [path for path in faults(document) if path.startswith(f"$.{key.path}")]
                assert wrong == [], f"{key.path}: {choice} is explained and not allowed"


def test_the_template_has_the_defaults() -> None:
    written = parse(render(answers()), FILE)
    least = {
        "source": {
            "url": "mysql://cdc@db.example:3306",
            "password_env": "CDC_SOURCE_PASSWORD",
            "server_id": 123456789,
        },
        "tables": {"include": [r"shop\..*"]},
        "store": {"path": "./data/shop/store"},
        "meta": {"path": "./data/shop/meta"},
        "apply": {"target": "./lake"},
    }
    assert written == parse(yaml.safe_dump(least), FILE)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"password_in_environment": False, "password_place": "o'hara.password", "name": "o'hara"},
        {"include": (r"a\-b\..*", r"it's\..*", r"[x]{1,2}\.#y", "null"), "target": "s3a://bucket/la ke: #x"},
        {"url": "mysql://c%40c@[::1]:3306"},
        {"lower_case_table_names": 1},
    ],
)
def test_the_template_holds_the_answers(changes: dict[str, Any]) -> None:
    given = answers(**changes)
    text = render(given)
    config = parse(text, FILE)
    assert config.source.url == given.url
    assert given.password_place in (config.source.password_env, getattr(config.source.password_file, "name", None))
    assert config.tables.include == given.include
    assert config.apply.target in (given.target, "/srv/towpath/lake")
    assert faults(yaml.safe_load(text)) == []
    assert "#   earliest " in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_example_loads_and_fits_the_schema() -> None:
    text = settings.example()
    parse(text, FILE)
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert faults(yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"batch": {"max_byte": 5}}, "$.batch"),
        ({"batch": {"max_bytes": "many"}}, "$.batch.max_bytes"),
        ({"batch": {"max_bytes": 0}}, "$.batch.max_bytes"),
        ({"store": {"path": "x", "retain": {"acked_for": "3 weeks"}}}, "$.store.retain.acked_for"),
        ({"store": {"path": "x", "flush": "never"}}, "$.store.flush"),
        ({"apply": {"target": "x", "mode": "history"}}, "$.apply.mode"),
        ({"apply": {"target": "x", "columns": {"a": "hsh"}}}, "$.apply.columns.a"),
        ({"apply": {}}, "$.apply"),
        ({"tables": {"include": "shop"}}, "$.tables.include"),
        ({"spark": {"conf": {"executor.cores": 2}}}, "$.spark.conf"),
    ],
)
def test_the_schema_refuses_what_the_models_refuse(changes: dict[str, Any], fault: str) -> None:
    document = yaml.safe_load(settings.example()) | changes
    assert fault in faults(document)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": {"max_bytes": "${BATCH_BYTES}", "lease_s": "5m", "max_wait_s": 0}},
        {"apply": {"target": "x", "zero_dates": None, "columns": {"a": None, "b": {"mask": 4}, "c": {"rename": "d"}}}},
        {"spark": {"conf": {"spark.executor.cores": 2, "spark.ui.enabled": False}}},
        {"store": {"path": "x", "retain": {"acked_for": None, "delete_at": "04;16"}}},
    ],
)
def test_the_schema_accepts_what_the_models_accept(changes: dict[str, Any]) -> None:
    assert faults(yaml.safe_load(settings.example()) | changes) == []


def test_a_default_is_found_by_its_key() -> None:
    assert reference.default("store.retain.acked_for") == "72h"
    assert reference.default("batch.max_bytes") == DestinationConfig.model_fields["batch"].default.max_bytes
    for path in ("source.url", "store.nothing", "batch.max_bytes.more"):
        with pytest.raises(KeyError):
            reference.default(path)
