"""The insert-only statement: when it is chosen, and that orphans between plan and statement do not harm it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.lake.apply import commit, merge
from cdc.lake.rows import changes
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.orphans import merge_overtaken

Database = Callable[[Server], str]
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))"

QUICK = [
    ("upsert", True, None, 3),
    ("append", False, None, 3),
]
"""The orphans of ``make test``: mode, small batches, and transactions in a batch. The others come with
``make test-long``."""
ORPHANS = [
    pytest.param(mode, small, *sizes, marks=() if (mode, small, *sizes) in QUICK else pytest.mark.long)
    for mode in ("upsert", "upsert by statement", "soft_delete", "append")
    for small in (True, False)
    for sizes in ((None, 3), (3, None), (5, 5))
]


def inserts(first: int, count: int) -> list[str]:
    return [f"INSERT INTO t VALUES ({i}, 'new')" for i in range(first, first + count)]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements for rows in their order: ``insert`` or ``general``."""
    words: list[str] = []
    for name, word in (
        ("insert_statement", "insert"), ("upsert_statement", "general"), ("soft_delete_statement", "general"),
    ):  # fmt: skip
        make = getattr(merge, name)

        def seen(*given: object, make: Callable[..., str] = make, word: str = word, **options: object) -> str:
            words.append(word)
            return make(*given, **options)

        monkeypatch.setattr(merge, name, seen)
    return words


@pytest.mark.long
def test_inserts_of_new_keys_are_inserted_and_nothing_else(
    mysql9: Server, tmp_path: Path, database: Database, chosen: list[str]
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))

    def apply(*statements: str) -> list[str]:
        chosen.clear()
        loop.sql(*statements)
        loop.capture()
        loop.apply_all()
        loop.require_equal("t")
        return list(chosen)

    assert apply(TABLE, *inserts(0, 5)) == ["insert"]
    assert apply(*inserts(10, 5)) == ["insert"]
    # No file may have these keys, though one has keys between them.
    assert apply(*inserts(15, 1), *inserts(7, 1)) == ["insert"]
    assert apply(f"INSERT INTO t VALUES {', '.join(f'({i}, 0)' for i in range(200, 240, 2))}") == ["insert"]
    # Between keys of a file, so that it may have it.
    assert apply(*inserts(203, 1)) == ["general"]
    assert apply(*inserts(30, 2), "UPDATE t SET v = 'x' WHERE id = 30") == ["general"]
    assert apply(*inserts(40, 2), "DELETE FROM t WHERE id = 40") == ["general"]
    assert apply("UPDATE t SET id = id + 300 WHERE id > 30") == ["general"]


def test_a_row_that_should_not_be_there_is_still_replaced(
    mysql9: Server, tmp_path: Path, database: Database, chosen: list[str]
) -> None:
    """After an accepted loss of changes the lake may have a row that the source had deleted meanwhile."""
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql(TABLE)
    loop.capture()
    loop.apply_all()
    write_deltalake(
        DeltaTable(str(loop.path("t"))), pa.table({"id": pa.array([2], pa.int32()), "v": ["stale"]}), mode="append"
    )
    loop.sql(*inserts(0, 5))
    loop.capture()
    loop.apply_all()
    loop.require_equal("t")
    assert chosen == ["general"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("mode", "small", "ours", "theirs"), ORPHANS)
def test_an_orphan_commits_between_plan_and_statement(
    mode: str,
    small: bool,
    ours: int | None,
    theirs: int | None,
    mysql9: Server,
    tmp_path: Path,
    database: Database,
    chosen: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our driver has planned and is held before its statement; others merge the same changes in batches of another
    size, some of them with updates. Then our statement runs."""
    if not small:
        monkeypatch.setattr(changes, "SMALL_BYTES", 0)
    if mode == "upsert by statement":  # as on a Connect server of others
        monkeypatch.setattr(commit, "replace_rows", lambda *_given, **_options: None)
        monkeypatch.setattr(merge, "may_change", lambda *_: False)
        mode = "upsert"
    overrides = f"DB.t: {{mode: {mode}}}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides)
    update, delete = "UPDATE t SET v = 'changed' WHERE id IN (1, 4)", "DELETE FROM t WHERE id = 10"
    loop.sql(TABLE, *inserts(0, 7), update, *inserts(10, 2), delete)
    loop.capture()
    loop.apply()
    # Seven inserts, an update, two inserts, a delete: the first batches of up to seven are all new.
    lease = loop.fetch(ours)
    merge_overtaken(loop, lease, monkeypatch, lambda: loop.apply(theirs))
    loop.apply_all(2)
    if mode == "append":
        # The update changes two rows.
        expected = [("insert", i) for i in range(7)] + [("update", 1), ("update", 4)]
        assert loop.changelog("t") == [*expected, ("insert", 10), ("insert", 11), ("delete", 10)]
        return
    assert "insert" in chosen
    rows = loop.delta("t", "id, v", "1") if mode == "upsert" else loop.delta("t", "id, v, _deleted", "1")
    lake_rows = [{"id": row["id"], "v": row["v"]} for row in rows if not row.get("_deleted")]
    assert lake_rows == loop.select("t")
    if mode == "soft_delete":
        assert [row["id"] for row in rows if row["_deleted"]] == [10]
