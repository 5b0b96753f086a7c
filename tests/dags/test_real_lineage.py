"""The lineage that Airflow's OpenLineage provider sends to an HTTP endpoint when Towpath's tasks end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cdc.config import load
from cdc.testing.servers import Server
from tests.fault.support import DELTA_RS
from tests.support.apply import LOCAL, Loop
from tests.support.capturing import capturing
from tests.support.real_airflow import RealAirflow

pytest.importorskip("airflow.providers.openlineage", reason="towpath[openlineage]")
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_URI = {"type": "string", "format": "uri"}
_FACETS = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "properties": {"_producer": _URI, "_schemaURL": _URI},
        "required": ["_producer", "_schemaURL"],
    },
}
_NAMED = {
    "type": "object",
    "properties": {
        "namespace": {"type": "string", "minLength": 1},
        "name": {"type": "string", "minLength": 1},
        **dict.fromkeys(("facets", "inputFacets", "outputFacets"), _FACETS),
    },
    "required": ["namespace", "name"],
}
RUN_EVENT = {
    "type": "object",
    "properties": {
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "eventTime": {"type": "string", "format": "date-time"},
        "producer": _URI,
        "schemaURL": _URI,
        "run": {
            "type": "object",
            "properties": {"runId": {"type": "string", "format": "uuid"}, "facets": _FACETS},
            "required": ["runId"],
        },
        "job": _NAMED,
        "inputs": {"type": "array", "items": _NAMED},
        "outputs": {"type": "array", "items": _NAMED},
    },
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
}
"""The required parts of a RunEvent in OpenLineage's specification (https://openlineage.io/spec/2-0-2/OpenLineage.json)."""


class _Endpoint(ThreadingHTTPServer):
    """Takes events as a lineage server does, and answers 400 to one that the specification forbids."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: list[dict[str, Any]] = []
        self.faults: list[str] = []

    def completed(self, task: str) -> dict[str, Any] | None:
        """Returns the event of the end of ``DAG.TASK``."""
        for event in self.events:
            if event["job"]["name"] == task and event.get("eventType") == "COMPLETE":
                return event
        return None


class _Handler(BaseHTTPRequestHandler):
    server: _Endpoint

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            jsonschema.validate(event, RUN_EVENT, format_checker=jsonschema.FormatChecker())
            self.server.events.append(event)
            self.send_response(201)
        except jsonschema.ValidationError as error:
            self.server.faults.append(str(error))
            self.send_response(400)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[_Endpoint]:
    server = _Endpoint()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()


def datasets(event: dict[str, Any], side: str) -> dict[str, dict[str, Any]]:
    return {f"{dataset['namespace']} {dataset['name']}": dataset for dataset in event[side]}


def test_each_task_that_writes_tells_an_endpoint(tmp_path: Path, mysql9: Server, endpoint: _Endpoint) -> None:
    mysql9.execute("DROP DATABASE IF EXISTS lineage", "CREATE DATABASE lineage")
    loop = Loop(tmp_path, mysql9, "lineage", apply=DELTA_RS, spark=LOCAL)
    loop.config.file.write_text(f"{loop.config.file.read_text(encoding='utf-8')}airflow: {{retries: 0}}\n")
    loop.config = load(loop.config.file)
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    loop.capture()
    transport = {"type": "http", "url": f"http://127.0.0.1:{endpoint.server_port}", "endpoint": "api/v1/lineage"}
    airflow = RealAirflow(
        tmp_path / "airflow",
        loop.config.file.parent,
        ("apply", "backfill", "verify", "maintain"),
        {"AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport), "AIRFLOW__OPENLINEAGE__NAMESPACE": "lake"},
    )

    def run(kind: str, task: str, form: dict[str, Any] | None = None) -> dict[str, Any]:
        dag_id = f"{kind}_shop"
        airflow.unpause(dag_id)
        run_id = airflow.trigger(dag_id, form)
        assert airflow.wait_run(dag_id, run_id) == "success", airflow.task_log(dag_id, task)[-3000:]
        airflow.wait(lambda: endpoint.completed(f"{dag_id}.{task}") is not None, f"the event of {dag_id}.{task}")
        event = endpoint.completed(f"{dag_id}.{task}")
        assert event is not None
        return event

    source, lake = f"mysql://127.0.0.1:{mysql9.port} lineage.t", f"file {loop.path('t')}"
    try:
        airflow.start(("api-server", "scheduler", "dag-processor"))
        merged = run("apply", "merge")
        loop.sql("UPDATE t SET v = 'x' WHERE id = 1")
        loop.capture()
        replayed = run("backfill", "replay", {"kind": "replay", "tables": ["lineage.t"]})
        with capturing(loop.config):
            loaded = run("backfill", "snapshot", {"kind": "snapshot", "tables": ["lineage.t"]})
            verified = run("verify", "verify")
        maintained = run("maintain", "maintain")
    finally:
        airflow.stop()
        mysql9.execute("DROP DATABASE lineage")
    assert endpoint.faults == []
    for event, rows in ((merged, 2), (replayed, 2), (loaded, 2)):
        assert event["job"]["namespace"] == "lake"
        assert datasets(event, "inputs").keys() == {source}
        written = datasets(event, "outputs")[lake]
        columns = [field["name"] for field in written["facets"]["schema"]["fields"]]
        assert columns[:2] == ["id", "v"]
        lineage = written["facets"]["columnLineage"]["fields"]
        assert [(name, lineage[name]["inputFields"][0]["field"]) for name in ("id", "v")] == [("id", "id"), ("v", "v")]
        assert written["outputFacets"]["outputStatistics"]["rowCount"] == rows
        assert int(written["facets"]["version"]["datasetVersion"]) >= 0
    (assertion,) = datasets(verified, "inputs")[lake]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["assertion"], assertion["success"]) == ("equal_to_source", True)
    assert datasets(maintained, "inputs").keys() == datasets(maintained, "outputs").keys() == {lake}
