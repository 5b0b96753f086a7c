"""The table of operations: what each takes on the wire, and that client, server and documentation have the same ones."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import UsageError
from cdc.batches.manifest import TableResult
from cdc.batches.operations import METHODS
from cdc.client.batches import RemoteBatchService
from cdc.client.meta import RemoteMeta
from cdc.client.reader import RemoteReader
from cdc.meta import ParkedTable, TableRecord
from cdc.server.files import relative_path
from cdc.server.operations import OPERATIONS
from cdc.store.reader.check import FilesReport

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "server.md"
KEYS = {
    "get": "owner, token, [lease_s, ahead, until, acked, acked_token, mixes, wait_s]",
    "ack": "batch, token, [results]",
    "rollback": "batch, token",
    "release": "owner",
    "check": "batch, token",
    "renew": "batch, token, [lease_s]",
    "resume": "batch, fingerprint",
    "obstacle": "owner, [until]",
    "next_seq": "",
    "last_seq": "",
    "manifests": "[after_batch]",
    "table_batch": "table, after_seq, [until_seq, whole]",
    "whoami": "",
    "state": "",
    "subscribe": "[table_filter]",
    "unsubscribe": "",
    "accept_beginning": "[expected]",
    "accept_tables": "tables, [expected]",
    "park": "table, parked",
    "keep_from": "table, [keep_seq]",
    "unpark": "result, level_seq",
    "release_parked": "table",
    "lock": "id, name, what, [shared]",
    "renew_locks": "ids",
    "unlock": "ids",
    "store": "",
    "totals": "",
    "require_kept": "seq",
    "backlog": "seq, [filter]",
    "schemas": "[seq]",
    "find_by_commit_time": "time_us",
    "find_by_store_time": "time_us",
    "seq_before": "time_us",
    "check_files": "",
    "entries": "after_seq, [upto_seq]",
    "entry_at": "seq",
    "range_entries": "path, offset, length",
}
"""The keys of each request of version 1 of the protocol, the optional ones in brackets."""


def test_each_takes_the_keys_of_version_1() -> None:
    keys_by_operation = {}
    for name, operation in OPERATIONS.items():
        fields = {key: field for key, field in operation.arguments.model_fields.items() if key != "subscriber"}
        optional = [key for key, field in fields.items() if not field.is_required()]
        keys = [key for key in fields if key not in optional]
        keys_by_operation[name] = ", ".join([*keys, *([f"[{', '.join(optional)}]"] if optional else [])])
    assert keys_by_operation == KEYS


def test_the_page_names_all() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \|", PAGE.read_text().partition("## Operations")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} >= set(OPERATIONS)


def test_clients_have_each_method() -> None:
    clients = {"batches": RemoteBatchService, "parking": RemoteMeta, "reader": RemoteReader}
    for method in METHODS.values():
        assert callable(getattr(clients[method.part], method.name)), method.name


@pytest.mark.parametrize(
    ("name", "arguments", "request_"),
    [
        ("last_seq", {}, {}),
        ("require_kept", {"after_seq": 7}, {"seq": 7}),
        ("release", {"owner": "o"}, {"subscriber": "apply", "owner": "o"}),
        ("ack", {"batch": 1, "token": "t"}, {"subscriber": "apply", "batch": 1, "token": "t", "results": []}),
        ("renew", {"batch": 1, "token": "t"}, {"subscriber": "apply", "batch": 1, "token": "t"}),
        (
            "accept_tables",
            {"subscriber": "audit", "tables": {"a.b": TableRecord(0, 1, 2, "id"), "a.c": None}},
            {"subscriber": "audit", "tables": {"a.b": "0 1 2 id", "a.c": None}},
        ),
        (
            "park",
            {
                "subscriber": "apply",
                "table": "a.b",
                "parked": (parked := ParkedTable(due="retry", reason="r", since=datetime(2026, 1, 1, tzinfo=UTC))),
            },
            {"subscriber": "apply", "table": "a.b", "parked": parked.model_dump(mode="json")},
        ),
    ],
)
def test_a_request(name: str, arguments: dict[str, Any], request_: dict[str, Any]) -> None:
    assert METHODS[name].request(**arguments) == request_


def test_results_are_sent_as_the_manifest_has_them() -> None:
    result = TableResult(table="a.b", inserted=3)
    document = METHODS["ack"].request(1, "t", results=[result])["results"]
    assert document == [result.model_dump(mode="json")]
    with pytest.raises(UsageError, match="these are not the results of a merge"):
        METHODS["ack"].request(1, "t", results=[{"table": 7}])


def test_answers_become_results() -> None:
    expires = datetime(2026, 1, 1, tzinfo=UTC)
    renew, files = METHODS["renew"].result, METHODS["check_files"].result
    assert renew.dump_python(expires, mode="json") == "2026-01-01T00:00:00+00:00"
    assert renew.validate_python("2026-01-01T00:00:00+00:00") == expires
    assert files.validate_python({"faults": ["f"], "remarks": []}) == FilesReport(["f"], [])


def test_an_argument_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(UsageError, match="renew: lease_s: input should be greater than 0"):
        METHODS["renew"].request(1, "t", lease_s=-1.0)
    with pytest.raises(UsageError, match="cannot be the name of a subscriber"):
        METHODS["rollback"].request(1, "t", subscriber="../x")


def test_a_manifest_of_a_store_that_was_moved_names_the_file_where_it_lies_now(tmp_path: Path) -> None:
    assert relative_path(tmp_path, str(tmp_path / "segments" / "1.binlog")) == "segments/1.binlog"
    assert relative_path(tmp_path, "/former/store/segments/1.binlog") == "segments/1.binlog"
    assert relative_path(tmp_path, "s3://bucket/stage/1.binlog") == "s3://bucket/stage/1.binlog"
