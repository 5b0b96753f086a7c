"""Airflow finds the package by its entry point, in a process that has not imported Airflow yet, and finds in it what
other providers have: operators, a hook, a connection type with its form."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from cdc.airflow.provider import get_provider_info

if TYPE_CHECKING:
    from fastapi.testclient import TestClient


def test_airflow_starts_with_the_package_installed(tmp_path: Path) -> None:
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "airflow", "providers", "hooks", "--output", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    hooks = [hook for hook in json.loads(done.stdout) if hook["connection_type"] == "towpath"]
    installed = [p for p in entry_points(group="apache_airflow_provider") if p.module == "cdc.airflow.provider"]
    assert [hook["class"] for hook in hooks] == ["cdc.airflow.hook.TowpathHook"] * len(installed)


def test_provider_info_needs_no_airflow() -> None:
    code = "import cdc.airflow.provider as p, sys; p.get_provider_info(); assert 'airflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["provider_info.schema.json", "provider.yaml.schema.json"])
def test_provider_info_follows_airflows_schemas(name: str) -> None:
    import airflow

    schema = json.loads((Path(airflow.__path__[0]) / name).read_text(encoding="utf-8"))
    if name == "provider.yaml.schema.json":  # of whole files, which hold more; only the connection types count
        schema = schema["properties"]["connection-types"]
        jsonschema.validate(get_provider_info()["connection-types"], schema)
    else:
        jsonschema.validate(get_provider_info(), schema)


def test_what_the_provider_names_exists() -> None:
    from airflow.sdk import BaseOperator

    info = get_provider_info()
    modules = [name for kind in ("operators", "hooks") for entry in info[kind] for name in entry["python-modules"]]
    members: dict[str, Any] = {}
    for module in map(importlib.import_module, modules):
        members |= vars(module)
    operators = {name for name, value in members.items() if isinstance(value, type) and issubclass(value, BaseOperator)}
    for kind in ("Capture", "Fetch", "Merge", "Finalize", "Snapshot", "Replay", "Verify", "Maintain"):
        assert f"Towpath{kind}Operator" in operators
    assert {"TowpathApplyTaskGroup", "TowpathHook"} <= set(members)


def test_the_form_of_the_connection_type(api: TestClient) -> None:
    (form,) = [
        form_of_type
        for form_of_type in api.get("/ui/connections/hook_meta").json()
        if form_of_type["connection_type"] == "towpath"
    ]
    assert form["hook_name"] == "Towpath (MySQL or MariaDB source)"
    if form["standard_fields"] is None:
        pytest.skip("before 3.2 Airflow needs Flask AppBuilder for the forms of providers")
    assert form["standard_fields"]["url_schema"]["hidden"]
    assert form["standard_fields"]["login"]["title"] == "User"
    assert list(form["extra_fields"]) == ["ssl_mode", "ssl_ca", "ssl_cert", "ssl_key"]
