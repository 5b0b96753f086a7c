"""Replays of tables in each mode: built again from the store, taken back, and filled once more after a point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import UsageError
from cdc.batches.service import BatchService
from cdc.binlog.positions import format_seq
from cdc.lake import pipeline
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.support.apply import Loop

MODES = ("upsert", "append", "soft_delete", "scd2")


@pytest.fixture
def loop(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> Loop:
    db = database(mysql9)
    overrides = ", ".join(f"DB.{mode}: {{mode: {mode}}}" for mode in MODES)
    loop = Loop(tmp_path, mysql9, db, overrides=overrides)
    loop.sql(*[f"CREATE TABLE {mode} (id INT PRIMARY KEY, v VARCHAR(10))" for mode in MODES])
    return loop


def each(loop: Loop, *statements: str) -> None:
    """Runs statements on every table, and captures them."""
    loop.sql(*[statement.replace("TABLE", mode) for mode in MODES for statement in statements])
    loop.capture()


def rows(loop: Loop) -> dict[str, list[dict[str, Any]]]:
    order = {"upsert": "id", "append": "_seq, _row"}
    return {mode: loop.delta(mode, order=order.get(mode, "id, _seq")) for mode in MODES}


def last_seq(loop: Loop) -> int:
    last = StoreReader(loop.config.store.path).last_seq()
    assert last is not None
    return last


def require_equal_sums(loop: Loop) -> None:
    """Each table, also a changelog that was built again, is equal to the source."""
    report = pipeline.verify(loop.config)
    assert {table.table: (table.ok, table.checksums.differences) for table in report.tables} == {
        f"{loop.db}.{mode}": (True, []) for mode in MODES
    }


@pytest.mark.long
def test_a_table_is_taken_back_and_brought_level(loop: Loop) -> None:
    each(loop, "INSERT INTO TABLE VALUES (1, 'a'), (2, 'b')")
    loop.apply_all()
    early, early_rows = last_seq(loop), rows(loop)["upsert"]
    each(loop, "UPDATE TABLE SET v = 'z' WHERE id = 1", "DELETE FROM TABLE WHERE id = 2")
    loop.apply_all()
    now = rows(loop)
    assert now["upsert"] != early_rows
    pipeline.replay(loop.config, [f"{loop.db}.upsert"], to=str(early))
    assert rows(loop) == {**now, "upsert": early_rows}
    pipeline.replay(loop.config, [f"{loop.db}.upsert"])
    assert rows(loop) == now


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_mode_ends_as_it_was(loop: Loop, tmp_path: Path) -> None:
    each(loop, "INSERT INTO TABLE VALUES (1, 'a'), (2, 'b'), (3, 'c')", "DELETE FROM TABLE WHERE id = 3")
    loop.apply_all()
    early, early_rows = last_seq(loop), rows(loop)
    each(
        loop,
        "UPDATE TABLE SET v = 'z' WHERE id = 1",
        "DELETE FROM TABLE WHERE id = 2",
        "INSERT INTO TABLE VALUES (3, 'again')",
        "UPDATE TABLE SET id = 9 WHERE id = 3",
    )
    loop.apply_all(transactions=3)
    now = rows(loop)
    assert all(len(early_rows[mode]) and early_rows[mode] != now[mode] for mode in MODES)
    tables = [f"{loop.db}.{mode}" for mode in MODES]

    # Once more after a point, and all of it: nothing is there twice.
    pipeline.replay(loop.config, tables[:-1], from_=format_seq(early))
    assert rows(loop) == now
    with pytest.raises(UsageError, match=r"\(mode: scd2\) follow from all of its changes"):
        pipeline.replay(loop.config, tables[-1:], from_=format_seq(early))
    pipeline.replay(loop.config, tables)
    assert rows(loop) == now
    require_equal_sums(loop)

    # Taken back: the table waits there, and a replay brings it level again.
    pipeline.replay(loop.config, tables, to=str(early))
    assert rows(loop) == early_rows
    each(loop, "INSERT INTO TABLE VALUES (4, 'd')")
    loop.apply_all()
    assert rows(loop) == early_rows
    assert set(BatchService(loop.config).subscription().parked) == set(tables)
    pipeline.replay(loop.config, tables)
    assert not BatchService(loop.config).subscription().parked
    assert [row["id"] for row in rows(loop)["upsert"]] == [1, 4, 9]
    loop.require_equal("upsert")

    # Beside it, in another mode.
    into = tmp_path / "beside"
    pipeline.replay(loop.config, tables[:1], into="./beside", mode="append", to=str(early))
    beside = Loop.__new__(Loop)
    beside.config = loop.config.model_copy(update={"apply": loop.config.apply.model_copy(update={"target": str(into)})})
    beside.db = loop.db
    assert [op for op, _ in beside.changelog("upsert")] == ["insert", "insert", "insert", "delete"]


@pytest.mark.long
def test_points_that_would_leave_changes_out_are_refused(loop: Loop) -> None:
    each(loop, "INSERT INTO TABLE VALUES (1, 'a')")
    loop.apply_all()
    each(loop, "INSERT INTO TABLE VALUES (2, 'b')")
    before = {mode: loop.version(mode) for mode in MODES}
    table = f"{loop.db}.upsert"
    with pytest.raises(UsageError, match=r"the table has no changes after \d+ .* yet, so those up to \d+"):
        pipeline.replay(loop.config, [table], from_=str(last_seq(loop)))
    with pytest.raises(UsageError, match="would be left out"):
        pipeline.plan_replay(loop.config, [table], from_=str(last_seq(loop)))
    for point in (str(last_seq(loop) + 1), "99:1:1"):
        for from_, to, into in ((point, None, None), (None, point, None), (None, point, "elsewhere")):
            with pytest.raises(UsageError, match="lies behind the store's last transaction"):
                pipeline.replay(loop.config, [table], from_=from_, to=to, into=into)
    assert {mode: loop.version(mode) for mode in MODES} == before
    loop.apply_all()
    loop.require_equal("upsert")
    assert not BatchService(loop.config).subscription().parked

    # A table whose last change lies before the point lacks nothing.
    loop.sql("INSERT INTO append VALUES (3, 'c')")
    loop.capture()
    loop.apply_all()
    point = str(last_seq(loop))
    assert pipeline.plan_replay(loop.config, [table], from_=point).tables[0].effect.startswith("changes rows of ")
    pipeline.replay(loop.config, [table], from_=point)
    loop.require_equal("upsert")
    for job in (pipeline.plan_replay, pipeline.replay):
        with pytest.raises(UsageError, match=r"there is no table .*\.nothing"):
            job(loop.config, [f"{loop.db}.nothing"], from_=point)
