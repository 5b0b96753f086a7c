"""Several source tables fill one Delta table: each keeps to its own rows, whatever happens to the others."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.base.errors import TargetError, UnsupportedError
from cdc.base.targets import members_of
from cdc.batches.service import BatchService
from cdc.cli.main import main as cdc
from cdc.lake import pipeline
from cdc.lake.delta.log import table_record
from cdc.lake.jobs.as_of import read_as_of
from cdc.lake.jobs.maintain_tables import maintain_tables
from cdc.lake.runtime.session import acquire
from cdc.testing.servers import Server
from cdc.watch.status import collect
from tests.integration.test_apply_policies import KEY, digest
from tests.integration.test_catalog import NAMES, entry, hive
from tests.support.groups import rows_of
from tests.support.shards import KINDS, Database, Shards

MODE_OF = {"mirror": "upsert", "marked": "soft_delete", "history": "scd2", "log": "append"}


@pytest.fixture
def shards(mysql9: Server, tmp_path: Path, database: Database) -> Shards:
    shards = Shards(tmp_path, mysql9, database, tables=1)
    shards.capture()
    shards.fill()
    return shards


@pytest.fixture
def mirrors(mysql9: Server, tmp_path: Path, database: Database) -> Shards:
    shards = Shards(tmp_path, mysql9, database, kinds=("mirror",), overrides="")
    shards.capture()
    shards.fill()
    return shards


@pytest.mark.long
def test_shards_with_the_same_keys(shards: Shards) -> None:
    shards.level()
    shards.require_union()
    assert members_of(DeltaTable(str(shards.path("log"))).metadata().configuration) == sorted(shards.names["log"])
    for kind in KINDS:
        first, other = shards.names[kind]
        shards.sql(f"UPDATE {first} SET v = v + 100 WHERE id < 10", f"DELETE FROM {first} WHERE id = 11")
        shards.sql(f"UPDATE {first} SET id = id + 1000 WHERE id IN (3, 4)", f"INSERT INTO {first} VALUES (99, 1, 'x')")
        shards.sql(f"TRUNCATE TABLE {other}", f"INSERT INTO {other} VALUES (1, 1, 'after')")
    shards.level()
    shards.require_union()
    shards.require_proved()


@pytest.mark.long
def test_ddl_goes_over_the_shards_one_by_one(mirrors: Shards) -> None:
    first, other, third, fourth = mirrors.names["mirror"]
    mirrors.sql(f"ALTER TABLE {first} ADD COLUMN extra INT NOT NULL DEFAULT 7, MODIFY v BIGINT")
    mirrors.sql(f"UPDATE {first} SET v = 5000000000 WHERE id = 1", f"UPDATE {other} SET v = 5 WHERE id = 1")
    mirrors.level()
    mirrors.require_union()
    mirrors.sql(f"ALTER TABLE {other} DROP COLUMN note", f"ALTER TABLE {third} CHANGE note remark VARCHAR(20)")
    mirrors.sql(f"INSERT INTO {other} VALUES (50, 1)", f"UPDATE {third} SET remark = 'new' WHERE id = 2")
    mirrors.level()
    mirrors.require_union()
    for name in (other, third):
        mirrors.sql(f"ALTER TABLE {name} MODIFY v BIGINT, ADD COLUMN extra INT")
        mirrors.sql(f"UPDATE {name} SET v = 6000000000 WHERE id = 1")
    db = mirrors.db
    mirrors.sql(f"DROP TABLE {fourth}", f"CREATE TABLE {db}.mirror_7 (id INT PRIMARY KEY, v INT, note VARCHAR(20))")
    mirrors.sql(f"INSERT INTO {db}.mirror_7 VALUES (1, 1, 'another shard')")
    mirrors.names["mirror"] = [first, other, third, f"{db}.mirror_7"]
    mirrors.level()
    mirrors.require_union(besides=[fourth])  # on_drop: keep
    mirrors.require_proved()


@pytest.mark.long
def test_a_shard_that_cannot_be_applied_leaves_the_others_alone(mirrors: Shards) -> None:
    first, other, *_ = mirrors.names["mirror"]
    mirrors.edit("on_error: block", "on_error: park, on_parked: warn")
    mirrors.level()
    mirrors.sql(f"ALTER TABLE {other} MODIFY v VARCHAR(9)", f"UPDATE {other} SET v = 'a' WHERE id = 2")
    mirrors.sql(f"UPDATE {first} SET v = -1 WHERE id = 2")
    mirrors.level()
    parked = BatchService(mirrors.config).subscription().parked
    assert set(parked) == {other}
    assert "changes the type of v from int to string" in parked[other].reason
    mirrors.names["mirror"].remove(other)
    mirrors.require_union(besides=[other])
    rows = {row["table"]: row for row in collect(mirrors.config, group=True)["tables"]}
    assert (rows[first]["lake_table"], rows[other]["lake_table"]) == ("lake.mirror", "lake.mirror")


@pytest.mark.long
def test_shards_are_renamed_inside_and_out_of_their_table(mirrors: Shards) -> None:
    first, other, third, fourth = mirrors.names["mirror"]
    mirrors.level()
    new = f"{mirrors.db}.mirror_8"
    mirrors.sql(f"RENAME TABLE {first} TO {new}", f"UPDATE {new} SET v = -1 WHERE id = 5")
    mirrors.sql(f"RENAME TABLE {fourth} TO {mirrors.db}.archive", f"UPDATE {other} SET v = -1 WHERE id = 5")
    mirrors.level()
    archive = f"{mirrors.db}.archive"
    assert set(BatchService(mirrors.config).subscription().parked) == {new, archive}
    mirrors.names["mirror"] = [other, third]
    mirrors.require_union(besides=[fourth])
    pipeline.snapshot(mirrors.config, [new])
    mirrors.names["mirror"] = [new, other, third]
    mirrors.sql(f"UPDATE {new} SET v = -2 WHERE id = 6")
    mirrors.level()
    mirrors.require_union(besides=[fourth])


@pytest.mark.long
def test_shards_are_loaded_and_built_again_one_by_one(
    mysql9: Server, tmp_path: Path, database: Database, shards: Shards
) -> None:
    shards.level()
    spark = acquire(shards.config.spark).spark
    for kind in KINDS:
        spark.sql(f"DELETE FROM delta.`{shards.path(kind)}` WHERE id = 3")  # damages both shards
    first = [names[0] for names in shards.names.values()]
    second = [names[1] for names in shards.names.values()]
    report = pipeline.verify(shards.config, [first[0]], wait_s=10)
    assert report.state == "differs"
    pipeline.replay(shards.config, first)
    assert pipeline.verify(shards.config, [first[0]], wait_s=10).state == "proved"
    assert pipeline.verify(shards.config, [second[0]], wait_s=10).state == "differs"
    with mysql9.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")  # so only a snapshot sees it
        for name in second:
            cursor.execute(f"UPDATE {name} SET note = 'unseen' WHERE id = 6")
        connection.commit()
    pipeline.snapshot(shards.config, second)
    shards.sql(*[f"UPDATE {name} SET v = -1 WHERE id = 5" for name in shards.all_names])
    shards.level()
    shards.require_union()
    shards.require_proved()
    reached = BatchService(shards.config).subscription().acked_seq
    done = maintain_tables(shards.config, vacuum=False)
    assert len(done) == len(KINDS)
    shards.require_union()
    with pytest.raises(UnsupportedError, match="rows of several sources"):
        read_as_of(spark, shards.config, seq=reached, tables=[first[0]])


@pytest.mark.long
def test_a_route_under_a_running_destination_is_noticed(mirrors: Shards) -> None:
    names = list(mirrors.names["mirror"])
    mirrors.level()
    route = mirrors.config.tables.route
    text = mirrors.config.file.read_text(encoding="utf-8")

    def refused(message: str) -> None:
        mirrors.sql(f"UPDATE {names[0]} SET v = v + 1 WHERE id = 1")
        mirrors.capture()
        with pytest.raises(TargetError, match=message):
            mirrors.apply_all()

    (pattern,) = route
    mirrors.edit(f"route: {{'{pattern}': 'lake.\\1'}}", "route: {}")
    refused("the Delta table is gone; it had changes up to")
    mirrors.config.file.write_text(text.replace("'lake.\\1'", "'lake.all_\\1'"), encoding="utf-8")
    mirrors.edit("on_error: block", "on_error: block ")
    refused("the Delta table is gone; it had changes up to")
    for name in names:  # the way out
        BatchService(mirrors.config).accept_tables("apply", {name: table_record(mirrors.config, name)})
    pipeline.snapshot(mirrors.config, names)
    former = mirrors.path("mirror")
    shutil.move(former, former.with_name("all_former"))
    mirrors.sql(*[f"UPDATE {name} SET v = -4 WHERE id = 4" for name in names])
    mirrors.level()
    shutil.copytree(mirrors.path("all_mirror"), former)  # where require_union looks
    mirrors.require_union()
    mirrors.require_proved()


@pytest.mark.long
def test_rows_without_events_change_in_their_own_shard(mysql9: Server, tmp_path: Path, database: Database) -> None:
    shards = Shards(tmp_path, mysql9, database, tables=1, kinds=("parent", "child", "part"), overrides="")
    for child, parent in zip(shards.names["child"], shards.names["parent"], strict=True):
        shards.sql(f"ALTER TABLE {child} ADD FOREIGN KEY (v) REFERENCES {parent} (id) ON DELETE CASCADE")
    low, high = "PARTITION low VALUES LESS THAN (10)", "PARTITION high VALUES LESS THAN MAXVALUE"
    shards.sql(*[f"ALTER TABLE {name} PARTITION BY RANGE (id) ({low}, {high})" for name in shards.names["part"]])
    shards.capture()
    shards.fill()
    shards.level()
    shards.sql(f"DELETE FROM {shards.names['parent'][0]} WHERE id < 7")
    shards.sql(f"ALTER TABLE {shards.names['part'][1]} DROP PARTITION low")
    shards.level()
    shards.require_union()
    assert not BatchService(shards.config).subscription().parked
    shards.require_proved()


@pytest.mark.long
def test_shards_get_a_policy_one_by_one(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWPATH_TEST_HASH_KEY", KEY)
    overrides = ", ".join(f"lake.{kind}: {{mode: {mode}, columns: {{}}}}" for kind, mode in MODE_OF.items())
    key = "hash_key_env: TOWPATH_TEST_HASH_KEY"
    shards = Shards(tmp_path, mysql9, database, tables=1, overrides=overrides, apply=key)
    shards.capture()
    shards.fill()
    shards.level()
    for mode in MODE_OF.values():
        shards.edit(f"mode: {mode}, columns: {{}}", f"mode: {mode}, columns: {{note: hash}}")
    shards.sql(*[f"UPDATE {name} SET v = -1 WHERE id = 5" for name in shards.all_names])
    shards.capture()
    with pytest.raises(TargetError, match=r"Run `cdc remask shop"):
        shards.apply_all()
    for number in range(2):
        chosen = [names[number] for names in shards.names.values()]
        done = pipeline.remask(shards.config, chosen)
        assert [result.table for result in done] == chosen
        for kind, names in shards.names.items():
            notes = {name: {row["note"] for row in rows_of(shards, kind) if row["_source"] == name} for name in names}
            expected = [digest("begun") if place <= number else "begun" for place in range(2)]
            assert notes == {name: {note} for name, note in zip(names, expected, strict=True)}
    shards.level()
    for kind, names in shards.names.items():
        for name in names:
            newest = {row["v"] for row in rows_of(shards, kind) if (row["_source"], row["id"]) == (name, 5)}
            assert -1 in newest, name
    shards.require_proved()


@pytest.mark.long
def test_a_plan_has_a_verdict_for_each_shard(mirrors: Shards, capsys: pytest.CaptureFixture[str]) -> None:
    first, other, third, fourth = mirrors.names["mirror"]
    mirrors.edit("on_error: block", "on_error: park, on_parked: warn")
    mirrors.level()
    statements = {
        first: f"ALTER TABLE {first} MODIFY v BIGINT, ADD COLUMN extra INT NOT NULL DEFAULT 7",
        other: f"ALTER TABLE {other} MODIFY v VARCHAR(9)",
        third: f"ALTER TABLE {third} CHANGE note remark VARCHAR(20)",
        fourth: f"ALTER TABLE {fourth} DROP COLUMN note",
    }
    file = mirrors.config.file.with_name("migration.sql")
    file.write_text("".join(f"{statement};\n" for statement in statements.values()), encoding="utf-8")
    capsys.readouterr()
    cdc(["--conf-dir", str(mirrors.config.file.parent), "plan", "--json", str(file)])
    planned = json.loads(capsys.readouterr().out)["statements"]
    verdicts = {table["table"]: table["verdict"] for statement in planned for table in statement["tables"]}
    for name, statement in statements.items():
        mirrors.sql(statement, f"UPDATE {name} SET v = 5 WHERE id = 5")
    mirrors.level()
    parked = BatchService(mirrors.config).subscription().parked
    assert {name for name, verdict in verdicts.items() if verdict == "refused"} == set(parked) == {other}
    mirrors.names["mirror"].remove(other)
    mirrors.require_union(besides=[other])


@pytest.mark.long
def test_the_catalog_has_the_delta_table_until_it_is_removed(
    mysql9: Server, tmp_path: Path, database: Database
) -> None:
    shards = Shards(
        tmp_path, mysql9, database, tables=1, kinds=("mirror",), overrides="", apply=NAMES, spark=hive(tmp_path)
    )
    shards.capture()
    shards.fill()
    shards.level()
    registered = entry(shards, "mirror", "lake_lake")
    assert registered is not None
    assert registered.location.removeprefix("file:") == str(shards.path("mirror"))
    shards.sql(*[f"UPDATE {name} SET v = -1 WHERE id = 5" for name in shards.all_names])
    shards.level()
    shards.require_union()
    named = acquire(shards.config.spark).spark.sql("SELECT DISTINCT _source FROM lake_lake.mirror WHERE v = -1")
    assert {row["_source"] for row in named.collect()} == set(shards.all_names)
    assert cdc(["--conf-dir", str(shards.config.file.parent), "remove", "shop", "--yes", "--lake"]) == 0
    assert entry(shards, "mirror", "lake_lake") is None
    assert not shards.path("mirror").exists()
    assert not shards.config.store.path.exists()


ALTERS = (
    "ADD COLUMN extra{} INT",
    "MODIFY v BIGINT",
    "DROP COLUMN note",
    "CHANGE note remark VARCHAR(20)",
    "ADD INDEX (v)",
    "MODIFY note VARCHAR(60)",
)


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_random_changes_of_sixteen_shards(mariadb11: Server, tmp_path: Path, database: Database, seed: int) -> None:
    rng = random.Random(seed)
    shards = Shards(
        tmp_path, mariadb11, database, databases=4, tables=4, kinds=("mirror",), overrides="", start="snapshot"
    )
    shards.fill(8)
    shards.capture()
    pipeline.snapshot(shards.config)
    shards.require_union()
    names, round_alters = shards.names["mirror"], list(ALTERS)
    for _ in range(2):
        alter = round_alters.pop(rng.randrange(len(round_alters))).format(rng.randrange(100))
        for name in rng.sample(names, len(names)):
            if rng.random() < 0.6:  # the others are altered never, or by a later round
                shards.sql(f"ALTER TABLE {name} {alter}") if _can(shards, name, alter) else None
            for _ in range(rng.randrange(3)):
                _change(rng, shards, name)
        shards.capture()
        shards.apply_all(rng.choice((None, 7, 20)))
        shards.require_union()
    shards.require_proved()


def _can(shards: Shards, name: str, alter: str) -> bool:
    columns = shards.columns_of(name)
    return "note" not in alter or "note" in columns


def _change(rng: random.Random, shards: Shards, name: str) -> None:
    key, value = rng.randrange(12), rng.randrange(1000)
    shards.sql(
        rng.choice(
            (
                f"INSERT INTO {name} (id, v) VALUES ({key}, {value}) ON DUPLICATE KEY UPDATE v = {value}",
                f"UPDATE {name} SET v = {value} WHERE id >= {key}",
                f"UPDATE {name} SET id = id + {rng.randrange(100, 10**6)} WHERE id = {key}",
                f"DELETE FROM {name} WHERE id = {key}",
                f"TRUNCATE TABLE {name}" if rng.random() < 0.3 else f"DELETE FROM {name} WHERE v > {value}",
            )
        )
    )
