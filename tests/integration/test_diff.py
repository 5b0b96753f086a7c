"""`cdc diff`: the rows that differ between two transactions, in each mode, from versions and from the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import TargetError, UsageError
from cdc.batches.service import BatchService
from cdc.cli.main import main
from cdc.lake import pipeline
from cdc.testing.servers import Server
from tests.support.apply import Loop

MODES = ("upsert", "soft_delete", "scd2")


def seq_of(loop: Loop) -> int:
    loop.capture()
    loop.apply_all()
    return BatchService(loop.config).subscription().acked_seq


@pytest.fixture
def loop(mysql9: Server, tmp_path: Path, database: Callable[[Server], str]) -> Loop:
    overrides = (
        "DB.upsert: {columns: {id: {rename: nr}}}, DB.soft_delete: {mode: soft_delete}, DB.scd2: {mode: scd2}, "
        "DB.log: {mode: append}"
    )
    made = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides)
    made.sql(
        *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v VARCHAR(20), b VARBINARY(4), n INT)" for t in (*MODES, "log")),
    )
    return made


def test_rows_that_differ(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    for table in (*MODES, "log"):
        loop.sql(
            f"INSERT INTO {table} VALUES (1, 'a', x'01', 1), (2, 'b', NULL, 2), (3, 'c', NULL, 3), (4, 'd', NULL, 4)"
        )
    first = seq_of(loop)
    for table in (*MODES, "log"):
        loop.sql(
            f"UPDATE {table} SET v = 'B', n = 20 WHERE id = 2",
            f"UPDATE {table} SET n = 9 WHERE id = 1",
            f"UPDATE {table} SET n = 1 WHERE id = 1",  # as it was
            f"DELETE FROM {table} WHERE id = 3",
            f"INSERT INTO {table} VALUES (3, 'c', NULL, 3)",  # and again
            f"DELETE FROM {table} WHERE id = 4",
            f"INSERT INTO {table} VALUES (5, 'e', x'FF', NULL)",
        )
    middle = seq_of(loop)
    for table in MODES:
        key = "nr" if table == "upsert" else "id"
        diff = pipeline.diff(loop.config, f"{loop.db}.{table}", str(first), str(middle))
        assert (diff.inserted, diff.updated, diff.deleted, diff.mode) == (1, 1, 1, table)
        assert diff.columns == {"v": 1, "n": 1}
        assert [(row.kind, row.key, row.before, row.after) for row in diff.rows] == [
            ("update", {key: "2"}, {"v": "b", "n": "2"}, {"v": "B", "n": "20"}),
            ("delete", {key: "4"}, {key: "4", "v": "d", "b": None, "n": "4"}, None),
            ("insert", {key: "5"}, None, {key: "5", "v": "e", "b": "FF", "n": None}),
        ]
        back = pipeline.diff(loop.config, f"{loop.db}.{table}", str(middle), str(first), limit=0)
        assert (back.inserted, back.updated, back.deleted, back.rows) == (1, 1, 1, [])
    with pytest.raises(UsageError, match=r"the table is a changelog.*cdc\.read_changes"):
        pipeline.diff(loop.config, f"{loop.db}.log", str(first), str(middle))

    # In the middle of a batch, after an ALTER, and as people see it.
    loop.sql("ALTER TABLE upsert ADD COLUMN later INT DEFAULT 7", "UPDATE upsert SET v = 'w', later = 8 WHERE id = 1")
    last = seq_of(loop)
    conf = ["--conf-dir", str(loop.config.file.parent)]
    capsys.readouterr()
    assert main([*conf, "diff", "shop", f"{loop.db}.upsert", str(middle), str(last), "--limit", "1"]) == 0
    said = capsys.readouterr().out
    assert "0 inserted, 1 updated, 0 deleted" in said and "updated columns: v 1" in said
    assert "not compared, because only the second point has them: later" in said
    assert "~ nr=1  v: a → w" in said
    assert main([*conf, "diff", f"{loop.db}.upsert", str(first), str(last), "--json"]) == 0
    document: Any = json.loads(capsys.readouterr().out)
    assert (document["inserted"], document["updated"], document["deleted"]) == (1, 2, 1)
    same = pipeline.diff(loop.config, f"{loop.db}.scd2", str(middle), str(last))
    assert (same.inserted, same.updated, same.deleted, same.columns, same.rows) == (0, 0, 0, {}, [])

    # Points and tables that are not there.
    assert main([*conf, "diff", f"{loop.db}.upsert", str(last)]) == 2
    assert "Give [DEST] DB.TABLE P1 P2." in capsys.readouterr().err
    assert main([*conf, "diff", "shop", "upsert", str(first), str(last)]) == 2
    assert "'upsert' is not the name of a table. Write it as db.table." in capsys.readouterr().err
    with pytest.raises(UsageError):
        pipeline.diff(loop.config, f"{loop.db}.upsert", str(first), "yesterday")
    with pytest.raises(TargetError, match="there is no Delta table"):
        pipeline.diff(loop.config, f"{loop.db}.nothing", str(first), str(last))
    loop.sql("ALTER TABLE soft_delete RENAME COLUMN id TO id2")
    renamed = seq_of(loop)
    with pytest.raises(TargetError, match="the key's column id2 is not in the table as of both points"):
        pipeline.diff(loop.config, f"{loop.db}.soft_delete", str(first), str(renamed))
