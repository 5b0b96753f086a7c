"""Positions that Debezium, Canal and Maxwell have stored are read from their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc.base.errors import ConfigError
from cdc.source.other_offsets import OtherOffset, read_other_offset

GOLDEN = Path(__file__).parents[2] / "golden" / "debezium"
CURSOR = {
    "@type": "com.alibaba.otter.canal.protocol.position.LogPosition",
    "identity": {"slaveId": -1, "sourceAddress": {"address": "db", "port": 3306}},
    "postion": {
        "gtid": "",
        "included": False,
        "journalName": "mysql-bin.000007",
        "position": 4096,
        "serverId": 1,
        "timestamp": 1796057085000,
    },
}
MAXWELL = {
    "server_id": 1,
    "binlog_file": "mysql-bin.000007",
    "binlog_position": 4096,
    "gtid_set": "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77",
    "client_id": "maxwell",
}
CONNECT = {
    "offsets": [
        {
            "partition": {"server": "shop"},
            "offset": {"ts_sec": 1, "file": "mysql-bin.000007", "pos": 4096, "row": 1, "event": 2},
        }
    ]
}


def read(folder: Path, document: object) -> OtherOffset:
    path = folder / "offsets"
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return read_other_offset(path)


def test_the_offsets_of_debeziums_engine_are_read() -> None:
    """A map that Java has serialized; recorded from a real run."""
    assert read_other_offset(GOLDEN / "offsets.dat") == OtherOffset("Debezium", "binlog.000001", 100102, "0-21362-94")


def test_each_format_is_read(tmp_path: Path) -> None:
    place = ("mysql-bin.000007", 4096)
    assert read(tmp_path, CONNECT) == OtherOffset("Debezium", *place, None)
    assert read(tmp_path, CURSOR) == OtherOffset("Canal", *place, None)
    clients = [{"clientIdentity": {"clientId": 1001, "destination": "example"}, "cursor": CURSOR}]
    assert read(tmp_path, {"clientDatas": clients, "destination": "example"}) == OtherOffset("Canal", *place, None)
    assert read(tmp_path, MAXWELL) == OtherOffset("Maxwell", *place, str(MAXWELL["gtid_set"]))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "has no position"),
        ("nothing {of} the kind", "has no position"),
        ({"file": "mysql-bin.000007", "pos": True}, "has no position"),
        ([MAXWELL, {**MAXWELL, "binlog_position": 5000}], "has 2 positions"),
        ({"file": "mysql-bin.000007", "pos": 4096, "snapshot": "INITIAL"}, "snapshot of Debezium's that has not ended"),
    ],
)
def test_other_files_are_refused_with_a_remedy(tmp_path: Path, document: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        read(tmp_path, document)
    assert "Give offsets of Debezium" in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_other_offset(tmp_path / "missing")
