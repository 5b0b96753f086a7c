"""``foreign_keys: park``: children whose rows change without row events are parked, and no difference is silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.base.errors import NeedsSnapshotError
from cdc.batches.service import BatchService
from cdc.binlog.sql.schemas import Schemas
from cdc.lake.apply.prepare import PreparedBatch, prepare
from cdc.lake.pipeline import snapshot
from cdc.source.preflight import check_source
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]
TABLES = (
    "CREATE TABLE p (id INT PRIMARY KEY, code INT UNIQUE, v INT)",
    "CREATE TABLE c (id INT PRIMARY KEY, p INT, CONSTRAINT c_p FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
    "CREATE TABLE g (id INT PRIMARY KEY, c INT, CONSTRAINT g_c FOREIGN KEY (c) REFERENCES c (id) ON DELETE SET NULL)",
    "CREATE TABLE u (id INT PRIMARY KEY, k INT, CONSTRAINT u_p FOREIGN KEY (k) REFERENCES p (code) ON UPDATE CASCADE)",
    "CREATE TABLE r (id INT PRIMARY KEY, p INT, CONSTRAINT r_p FOREIGN KEY (p) REFERENCES p (id))",
    "INSERT INTO p VALUES (1, 10, 1), (2, 20, 2), (3, 30, 3)",
    "INSERT INTO c VALUES (1, 1), (2, 2)",
    "INSERT INTO g VALUES (1, 1), (2, 2)",
    "INSERT INTO u VALUES (1, 20)",
)


def parked_after(loop: Loop, *statements: str) -> dict[str, str]:
    """Captures statements, and returns the tables that their batches would park, with the reasons. Acks the batches."""
    loop.sql(*statements)
    loop.capture()
    return {table: str(error) for batch in batches(loop) for table, error in batch.faults.items()}


def batches(loop: Loop) -> list[PreparedBatch]:
    service, prepared = BatchService(loop.config), []
    while (lease := service.get("test", wait_s=0)) is not None:
        prepared.append(prepare(lease.manifest, loop.config, lambda: None, service.subscription()))
        service.ack(lease.manifest.batch, lease.token)
    return prepared


def begun(loop: Loop) -> Loop:
    loop.sql(*TABLES)
    loop.capture()
    batches(loop)
    return loop


@pytest.fixture(
    params=[
        "mariadb11",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mariadb10", "mysql56", "mysql57", "mysql80")),
    ]
)
def silent(request: pytest.FixtureRequest, tmp_path: Path, database: Database) -> Iterator[Loop]:
    with ExitStack() as stack:
        shared = request.param not in ("mysql57", "mysql80")
        server = request.getfixturevalue(request.param) if shared else stack.enter_context(Server(request.param))
        yield begun(Loop(tmp_path, server, database(server), apply="on_error: park, foreign_keys: park"))


def test_a_change_of_a_parent_parks_the_children_that_it_reaches(silent: Loop) -> None:
    db = silent.db
    assert parked_after(silent, "UPDATE p SET v = 7", "INSERT INTO p VALUES (5, 50, 5)", "DELETE FROM g") == {}
    assert parked_after(silent, "UPDATE p SET code = 10 WHERE id = 1", "UPDATE p SET code = code") == {}
    reasons = parked_after(silent, "DELETE FROM p WHERE id = 1")
    assert sorted(reasons) == [f"{db}.c", f"{db}.g"]
    assert f"deleted rows of {db}.p, and the foreign key c_p (ON DELETE CASCADE) changed rows" in reasons[f"{db}.c"]
    assert "position" in reasons[f"{db}.c"]
    assert f"cdc snapshot shop {db}.c" in reasons[f"{db}.c"]
    assert f"through {db}.c" in reasons[f"{db}.g"]
    assert list(parked_after(silent, "UPDATE p SET code = 21 WHERE code = 20")) == [f"{db}.u"]
    assert sorted(parked_after(silent, "REPLACE INTO p VALUES (3, 30, 4)")) == [f"{db}.c", f"{db}.g"]
    assert parked_after(silent, "SET foreign_key_checks = 0", "DELETE FROM p WHERE id = 2") == {}


def test_keys_that_statements_add_drop_and_rename_are_followed(silent: Loop) -> None:
    db = silent.db
    assert parked_after(silent, "ALTER TABLE g DROP FOREIGN KEY g_c") == {}
    assert list(parked_after(silent, "DELETE FROM p WHERE id = 1")) == [f"{db}.c"]
    silent.sql(
        "DELETE FROM u", "DELETE FROM p WHERE id = 2", "ALTER TABLE c DROP FOREIGN KEY c_p"
    )  # dropped when capture comes
    assert list(parked_after(silent)) == [f"{db}.c"]
    assert parked_after(silent, "DELETE FROM p WHERE id = 3") == {}
    add = "ADD CONSTRAINT late FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL"
    assert parked_after(silent, "INSERT INTO p VALUES (4, 40, 4), (5, 50, 5), (6, 60, 6)", f"ALTER TABLE r {add}") == {}
    assert list(parked_after(silent, "DELETE FROM p WHERE id = 4")) == [f"{db}.r"]
    assert parked_after(silent, "RENAME TABLE p TO q") == {}
    assert f"of {db}.q" in parked_after(silent, "DELETE FROM q WHERE id = 5")[f"{db}.r"]
    own = "CREATE TABLE own (id INT PRIMARY KEY, up INT, FOREIGN KEY (up) REFERENCES own (id) ON DELETE CASCADE)"
    assert parked_after(silent, own, "INSERT INTO own VALUES (1, NULL), (2, 1)") == {}
    assert list(parked_after(silent, "DELETE FROM own WHERE id = 1")) == [f"{db}.own"]


def test_a_key_of_several_columns(silent: Loop) -> None:
    db = silent.db
    silent.sql(
        "CREATE TABLE pp (a INT, b INT, v INT, PRIMARY KEY (a, b))",
        "CREATE TABLE cc (id INT PRIMARY KEY, x INT, y INT, CONSTRAINT cc_pp FOREIGN KEY (x, y) REFERENCES pp (a, b) "
        "ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO pp VALUES (1, 1, 1), (1, 2, 2), (3, 3, 3)",
        "INSERT INTO cc VALUES (1, 1, 1), (2, 1, 2)",
    )
    assert parked_after(silent, "UPDATE pp SET v = 5") == {}
    assert list(parked_after(silent, "UPDATE pp SET b = 7 WHERE b = 2")) == [f"{db}.cc"]
    assert list(parked_after(silent, "DELETE FROM pp WHERE a = 1 AND b = 1")) == [f"{db}.cc"]


def test_a_parent_that_is_not_captured_parks_its_children_unless_the_user_accepts_it(silent: Loop) -> None:
    db = silent.db
    [warning] = [f for f in check_source(silent.config) if f.subject == f"table {db}.c"]
    assert (warning.level, "c_p to" in warning.message) == ("warning", True)
    silent.exclude(rf"{db}\.p")
    [error] = [f for f in check_source(silent.config) if f.subject == f"table {db}.c"]
    assert (error.level, error.stops) == ("error", "apply")
    assert f"{db}.p is not captured" in error.message
    reasons = parked_after(silent, "INSERT INTO c VALUES (7, 2)")
    assert sorted(reasons) == [f"{db}.c", f"{db}.u"]
    assert "not captured" in reasons[f"{db}.c"]
    apply = silent.config.apply.model_copy(update={"foreign_keys": "ignore"})
    silent.config = silent.config.model_copy(update={"apply": apply})
    assert parked_after(silent, "INSERT INTO c VALUES (8, 2)") == {}


def test_block_refuses_the_batch(tmp_path: Path, mariadb11: Server, database: Database) -> None:
    loop = begun(Loop(tmp_path, mariadb11, database(mariadb11), apply="on_error: block, foreign_keys: park"))
    with pytest.raises(NeedsSnapshotError, match="foreign key c_p"):
        parked_after(loop, "DELETE FROM p WHERE id = 1")


def test_a_server_that_logs_the_actions_parks_nothing(tmp_path: Path, mysql9: Server, database: Database) -> None:
    loop = begun(Loop(tmp_path, mysql9, database(mysql9)))
    files = sorted(tmp_path.rglob("schemas/*.json"))
    assert Schemas.load(files[-1]).foreign_keys == {}
    assert parked_after(loop, "DELETE FROM p WHERE id = 1", "UPDATE p SET code = 21 WHERE code = 20") == {}


@pytest.mark.long
def test_a_snapshot_brings_the_children_back(tmp_path: Path, mariadb11: Server, database: Database) -> None:
    loop = Loop(tmp_path, mariadb11, database(mariadb11), apply="on_error: park, foreign_keys: park")
    loop.sql(*TABLES)
    loop.capture()
    loop.apply_all()
    loop.sql("DELETE FROM p WHERE id = 1")
    loop.capture()
    loop.apply_all()
    loop.require_equal("p")
    parked = BatchService(loop.config).subscription().parked
    assert {table: record.due for table, record in parked.items()} == dict.fromkeys(
        (f"{loop.db}.c", f"{loop.db}.g"), "snapshot"
    )
    snapshot(loop.config, sorted(parked))
    loop.capture()
    loop.sql("INSERT INTO c VALUES (9, 3)")
    loop.capture()
    loop.apply_all()
    for table in ("p", "c", "g", "u"):
        loop.require_equal(table)
    assert BatchService(loop.config).subscription().parked == {}


@pytest.fixture
def follows(tmp_path: Path, mariadb11: Server, database: Database, monkeypatch: pytest.MonkeyPatch) -> Loop:
    """A destination with ``foreign_keys: follow``, the default."""
    monkeypatch.setenv("TOWPATH_TEST_HASH_KEY", "k" * 32)
    overrides = "DB.hashed: {columns: {p: hash}}, DB.keyed: {keys: [p, v]}, DB.left: {foreign_keys: ignore}"
    apply = "on_error: park, hash_key_env: TOWPATH_TEST_HASH_KEY"
    return begun(Loop(tmp_path, mariadb11, database(mariadb11), overrides=overrides, apply=apply))


PARENT_COLUMN = "FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE ON UPDATE SET NULL"


@pytest.mark.parametrize(
    ("create", "reason"),
    [
        ("CREATE TABLE bare (p INT, {key})", "the table has no primary key"),
        ("CREATE TABLE keyed (id INT PRIMARY KEY, p INT, v INT, {key})", "keys names other columns"),
        (
            "CREATE TABLE hashed (id INT PRIMARY KEY, p INT, {key})",
            "the column p is left out of the lake, or has other",
        ),
        ("CREATE TABLE made (id INT PRIMARY KEY, p INT, v INT AS (id + 1), {key})", None),
    ],
)
def test_tables_whose_rows_cannot_be_found_are_parked(follows: Loop, create: str, reason: str | None) -> None:
    name = f"{follows.db}.{create.split()[2]}"
    assert parked_after(follows, create.format(key=PARENT_COLUMN), "INSERT INTO p VALUES (7, 70, 7), (8, 80, 8)") == {}
    deleted = parked_after(follows, "DELETE FROM p WHERE id = 7")
    updated = parked_after(follows, "UPDATE p SET id = 9 WHERE id = 8")
    if reason is None:
        assert deleted == {}
        assert "has generated columns" in updated[name]
    else:
        assert reason in deleted[name]
        assert f"they are not followed, because {reason}" in updated[name]
        assert f"cdc snapshot shop {name}" in updated[name]


def test_keys_that_may_have_been_others_are_not_executed(follows: Loop) -> None:
    """Capture reads the keys when the source has executed later statements already."""
    db = follows.db
    add = "ALTER TABLE r ADD CONSTRAINT late FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE"
    parked = parked_after(
        follows,
        "CREATE INDEX i ON r (p)",  # a statement on the table makes capture read
        "INSERT INTO p VALUES (7, 70, 7), (8, 80, 8)",
        "DELETE FROM p WHERE id = 7",  # without an effect on r
        add,
    )
    assert list(parked) == [f"{db}.r"]
    assert "a later statement may have changed the keys before they were read" in parked[f"{db}.r"]
    assert parked_after(follows, "DELETE FROM p WHERE id = 8") == {}


def test_capture_that_is_behind_is_waited_for(follows: Loop) -> None:
    db = follows.db
    follows.sql("CREATE INDEX i ON c (p)", "DELETE FROM p WHERE id = 1")
    follows.capture()
    service = BatchService(follows.config)
    stored = Schemas.load(max(follows.config.store.path.glob("schemas/*.json"), key=lambda f: int(f.stem)))
    newer = stored.model_copy(update={"read_at": (service.last_seq() or 0) + 1})
    newer.save(max(follows.config.store.path.glob("schemas/*.json"), key=lambda f: int(f.stem)))
    faults = [batch.faults for batch in batches(follows) if batch.faults]
    (error,) = [fault[f"{db}.c"] for fault in faults]
    assert error.retryable
    assert "and capture has read up to" in str(error)


def test_a_table_between_that_is_not_followed_parks_what_lies_behind(follows: Loop) -> None:
    db = follows.db
    create_left = "CREATE TABLE `left` (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)"
    behind = "CREATE TABLE behind (id INT PRIMARY KEY, l INT, FOREIGN KEY (l) REFERENCES `left` (id) ON DELETE CASCADE)"
    assert parked_after(follows, create_left, behind, "INSERT INTO p VALUES (7, 70, 7)") == {}
    parked = parked_after(follows, "DELETE FROM p WHERE id = 7")
    assert list(parked) == [f"{db}.behind"]
    assert f"for {db}.left" in parked[f"{db}.behind"]
