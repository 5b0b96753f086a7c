"""Deletion vectors: when a merge uses them, what it leaves, and that orphans between plan and statement do not harm it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.base.targets import PLAIN_READER, VECTORS_READER
from cdc.lake.delta import files
from cdc.lake.delta.log import read_position
from cdc.lake.rows import changes
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.orphans import merge_overtaken

Database = Callable[[Server], str]
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))"
FILL = [
    f"INSERT INTO t VALUES {', '.join(f'({i}, {chr(39)}old{chr(39)})' for i in range(base, base + 200))}"
    for base in (0, 1000)
]
VECTORS = "DB.t: {deletion_vectors: true}"


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of any size are large."""
    monkeypatch.setattr(files, "SCATTERED_BYTES", 1)
    monkeypatch.setattr(files, "SMALL_BYTES", 0)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def filled(loop: Loop) -> Loop:
    """Makes the table, in two files."""
    for statements in ((TABLE,), *((statement,) for statement in FILL)):
        loop.sql(*statements)
        loop.capture()
        loop.apply_all()
    return loop


def marked(loop: Loop) -> int:
    """Returns how many rows of the newest version are marked in deletion vectors, by a log without checkpoints."""
    marked_rows: dict[str, int] = {}
    for log in sorted((loop.path("t") / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text().splitlines()]
        for action in (action["remove"] for action in actions if "remove" in action):
            marked_rows.pop(action["path"], None)
        for action in (action["add"] for action in actions if "add" in action):
            marked_rows[action["path"]] = (action.get("deletionVector") or {}).get("cardinality", 0)
    return sum(marked_rows.values())


def reader(loop: Loop) -> str | None:
    return read_position(str(loop.path("t")), "shop", f"{loop.db}.t").reader


@pytest.mark.long
@pytest.mark.usefixtures("large")
def test_scattered_changes_are_marked_and_many_are_rewritten(
    mysql9: Server, tmp_path: Path, database: Database
) -> None:
    loop = filled(Loop(tmp_path, mysql9, database(mysql9), overrides=VECTORS))
    assert reader(loop) == PLAIN_READER  # inserts alone need no vectors

    def apply(*statements: str) -> int:
        loop.sql(*statements)
        loop.capture()
        loop.apply_all()
        loop.require_equal("t")
        return marked(loop)

    assert apply("UPDATE t SET v = 'a' WHERE id IN (3, 1003)", "DELETE FROM t WHERE id = 1005") == 3
    assert reader(loop) == VECTORS_READER
    assert apply("UPDATE t SET v = 'b' WHERE id = 4") == 4
    # Most rows change: their files are rewritten, and the vectors go.
    assert apply("UPDATE t SET v = CONCAT(v, '!')") == 0
    assert apply("UPDATE t SET v = 'c' WHERE id = 4") == 1


@pytest.mark.long
def test_without_the_setting_or_in_small_tables_files_are_rewritten(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = "UPDATE t SET v = CONCAT(v, '!') WHERE id = 3"
    small = filled(Loop(made(tmp_path / "a"), mysql9, database(mysql9), overrides=VECTORS))
    small.sql(update)
    small.capture()
    small.apply_all()
    small.require_equal("t")
    assert (marked(small), reader(small)) == (0, PLAIN_READER)
    monkeypatch.setattr(files, "SCATTERED_BYTES", 1)
    monkeypatch.setattr(files, "SMALL_BYTES", 0)
    plain = filled(Loop(made(tmp_path / "b"), mysql9, database(mysql9)))
    plain.sql(update)
    plain.capture()
    plain.apply_all()
    plain.require_equal("t")
    assert (marked(plain), reader(plain)) == (0, PLAIN_READER)


@pytest.mark.long
@pytest.mark.usefixtures("large")
def test_a_table_that_has_vectors_is_decided_by_batch_and_one_that_refuses_them_gets_none(
    mysql9: Server, tmp_path: Path, database: Database
) -> None:
    for value, expected in (("true", 1), ("false", 0)):
        setting = VECTORS if value == "false" else ""
        loop = filled(Loop(made(tmp_path / value), mysql9, database(mysql9), overrides=setting))
        DeltaTable(str(loop.path("t"))).alter.set_table_properties({"delta.enableDeletionVectors": value})
        loop.sql("UPDATE t SET v = 'x' WHERE id = 3")
        loop.capture()
        loop.apply_all()
        loop.require_equal("t")
        assert marked(loop) == expected
        loop.sql("UPDATE t SET v = 'y'")
        loop.capture()
        loop.apply_all()
        loop.require_equal("t")
        assert marked(loop) == 0


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("mode", [pytest.param(mode, marks=pytest.mark.long) for mode in ("soft_delete", "scd2")])
def test_other_modes_mark_rows_too(mode: str, mysql9: Server, tmp_path: Path, database: Database) -> None:
    setting = f"DB.t: {{deletion_vectors: true, mode: {mode}}}"
    loop = filled(Loop(tmp_path, mysql9, database(mysql9), overrides=setting))
    loop.sql("UPDATE t SET v = 'x' WHERE id IN (3, 1003)", "DELETE FROM t WHERE id = 1005")
    loop.capture()
    loop.apply_all()
    assert marked(loop) == 3
    live = "NOT _deleted" if mode == "soft_delete" else "_current"
    assert [row for row in loop.delta("t", f"id, v, {live} AS live") if row.pop("live")] == loop.select("t")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    ("mode", "small", "ours", "theirs"),
    [
        ("upsert", True, None, 3),
        pytest.param("upsert", True, 3, None, marks=pytest.mark.long),
        pytest.param("soft_delete", False, None, 3, marks=pytest.mark.long),
        pytest.param("soft_delete", False, 3, None, marks=pytest.mark.long),
    ],
)
def test_an_orphan_commits_between_plan_and_statement(
    mode: str,
    small: bool,
    ours: int | None,
    theirs: int | None,
    mysql9: Server,
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our driver has planned to mark rows and is held before its statement; others mark rows of the same files in
    batches of another size. Then our statement runs."""
    if not small:
        monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    setting = f"DB.t: {{deletion_vectors: true, mode: {mode}}}"
    loop = filled(Loop(tmp_path, mysql9, database(mysql9), overrides=setting))
    loop.sql(
        "UPDATE t SET v = 'one' WHERE id IN (1, 1001)",
        "DELETE FROM t WHERE id = 2",
        "UPDATE t SET v = 'two' WHERE id = 1",
        "INSERT INTO t VALUES (2, 'again')",
        "UPDATE t SET id = 5000 WHERE id = 3",
        "DELETE FROM t WHERE id = 1001",
    )
    loop.capture()
    lease = loop.fetch(ours)

    def others() -> None:
        loop.apply(theirs)
        assert marked(loop)

    merge_overtaken(loop, lease, monkeypatch, others)
    loop.apply_all(2)
    assert marked(loop)
    if mode == "upsert":
        loop.require_equal("t")
        return
    rows = loop.delta("t", "id, v, _deleted", "1")
    assert [{"id": row["id"], "v": row["v"]} for row in rows if not row["_deleted"]] == loop.select("t")
    assert [row["id"] for row in rows if row["_deleted"]] == [3, 1001]
