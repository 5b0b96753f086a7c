"""Several sources write one set of Delta tables: each keeps to its own rows, whatever the others do."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.base.errors import CdcError, TargetError, UnsupportedError
from cdc.base.targets import members_of
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.lake.delta import log
from cdc.lake.delta.known_tables import KnownTables
from cdc.lake.delta.log import table_record
from cdc.lake.delta.tables import target_of
from cdc.lake.jobs import shared_rows
from cdc.lake.jobs.as_of import read_as_of
from cdc.lake.jobs.retry import retry_parked
from cdc.lake.runtime.session import acquire
from cdc.source.snapshot import SnapshotFiles
from cdc.testing.servers import Server
from cdc.watch.status import collect
from tests.support.apply import Loop
from tests.support.groups import MODES, TABLES, Database, Member, fill, members, require_own_and_proved
from tests.support.orphans import merge_overtaken


@pytest.fixture
def pair(mysql9: Server, mariadb11: Server, tmp_path: Path, database: Database) -> tuple[Member, Member]:
    loops = members(mysql9, mariadb11, tmp_path, database)
    for loop in loops:
        loop.capture()
        fill(loop)
    return loops


@pytest.mark.long
def test_members_write_the_same_keys(pair: tuple[Member, Member]) -> None:
    eu, us = pair
    eu.level()
    assert members_of(DeltaTable(str(eu.path("mirror"))).metadata().configuration) == ["eu"]
    us.level()
    for loop in pair:
        loop.require_own()
    assert members_of(DeltaTable(str(eu.path("log"))).metadata().configuration) == ["eu", "us"]
    for table in TABLES:
        eu.sql(f"UPDATE {table} SET v = v + 100 WHERE id < 10", f"DELETE FROM {table} WHERE id = 11")
        us.sql(f"UPDATE {table} SET id = id + 1000 WHERE id IN (3, 4)", f"INSERT INTO {table} VALUES (11000, 1, 'x')")
        us.sql(f"DELETE FROM {table} WHERE id = 12", f"INSERT INTO {table} VALUES (12, 12, 'again')")
    us.level()
    eu.level()
    for loop in pair:
        loop.require_own()
    us.sql(*[f"TRUNCATE TABLE {table}" for table in TABLES])
    us.sql(*[f"INSERT INTO {table} VALUES (1, 1, 'after')" for table in TABLES])
    eu.sql("DROP TABLE mirror")  # the rows stay (on_drop), and go when a table of that name is created
    eu.sql("CREATE TABLE mirror (id INT PRIMARY KEY, v INT, note VARCHAR(20))")
    eu.sql("INSERT INTO mirror VALUES (5, 5, 'new')")
    us.level()
    eu.level()
    require_own_and_proved(*pair)
    assert [(row["_source"], row["id"]) for row in eu.delta("mirror", order="_source")] == [("eu", 5), ("us", 1)]


@pytest.mark.long
def test_a_name_that_begins_like_another_one(
    mysql9: Server, mariadb11: Server, tmp_path: Path, database: Database
) -> None:
    names = ("Eu", "Eu.source_schema")
    pair = members(mysql9, mariadb11, tmp_path, database, names=names)
    member, other = pair
    for loop in pair:
        loop.capture()
        fill(loop)
        loop.level()
    assert members_of(DeltaTable(str(member.path("mirror"))).metadata().configuration) == list(names)
    member.sql("DROP TABLE mirror")
    member.level()
    member.sql(
        "CREATE TABLE mirror (id INT PRIMARY KEY, v INT, note VARCHAR(20), also INT) SELECT 5 id, 1 v, 'x' note, 2 also"
    )
    other.sql("DROP TABLE marked")
    other.level()
    other.sql("CREATE TABLE marked (id INT PRIMARY KEY, v INT, note VARCHAR(20)) SELECT 7 id, 1 v, 'y' note")
    for loop in pair:
        loop.sql(*[f"UPDATE {table} SET v = -1 WHERE id = 5" for table in TABLES])
        loop.level()
        require_own_and_proved(loop)


@pytest.mark.long
def test_members_create_their_tables_at_once(pair: tuple[Member, Member]) -> None:
    for loop in pair:
        loop.sql(*[f"CREATE TABLE more{i} (id INT PRIMARY KEY, {loop.name} INT)" for i in range(6)])
        loop.sql(*[f"INSERT INTO more{i} VALUES ({i}, 1)" for i in range(6)])
        loop.capture()
    acquire(pair[0].config.spark)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda loop: loop.apply_all(), pair))
    for loop in pair:
        loop.require_own(*TABLES, *[f"more{i}" for i in range(6)])
        loop.require_proved()


@pytest.mark.long
def test_a_restore_beneath_many_commits_of_others(pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch) -> None:
    eu, us = pair
    us.level()
    eu.level()
    eu.sql("UPDATE mirror SET v = -1 WHERE id = 5")
    eu.capture()
    pipeline.merge(eu.config, eu.fetch())  # and dies before the ack
    reached = eu.version("mirror")
    us.sql("UPDATE mirror SET v = -1 WHERE id = 5")
    us.level()
    acquire(eu.config.spark).spark.sql(f"RESTORE TABLE delta.`{eu.path('mirror')}` TO VERSION AS OF {reached - 1}")
    monkeypatch.setattr(log, "_known_tables", KnownTables(1))  # so that the other's commits hide the member's own
    us.sql("UPDATE mirror SET v = -2 WHERE id = 5")
    us.capture()
    for loop in pair:
        with pytest.raises(TargetError, match="is a RESTORE to version"):
            loop.apply_all()
    for loop in pair:
        _load_again(loop)
    shutil.rmtree(eu.path("mirror"))
    for loop in pair:
        loop.sql("UPDATE mirror SET v = -2 WHERE id = 6")
        loop.capture()
        with pytest.raises(TargetError, match="the Delta table is gone"):
            loop.apply_all()
    for loop in pair:
        _load_again(loop)
    eu.require_own()


def _load_again(loop: Member) -> None:
    """Does what docs/how-to/groups.md says about a table that was restored or removed."""
    table = f"{loop.db}.mirror"
    BatchService(loop.config).accept_tables("apply", {table: table_record(loop.config, table)})
    pipeline.snapshot(loop.config, [table])
    loop.sql("UPDATE mirror SET v = -3 WHERE id = 7")
    loop.level()
    loop.require_own()


@pytest.mark.long
def test_a_member_leaves_and_comes_back_with_another_store(
    pair: tuple[Member, Member], tmp_path: Path, mariadb11: Server
) -> None:
    eu, us = pair
    us.level()
    eu.level()
    spark = acquire(eu.config.spark).spark
    for loop, table in ((loop, table) for loop in pair for table in TABLES):
        if loop is us:  # as docs/how-to/groups.md says
            own = target_of(us.config, f"{us.db}.{table}")
            spark.sql(f"DELETE FROM {own.sql} WHERE _source = 'us'")
            spark.sql(f"ALTER TABLE {own.sql} UNSET TBLPROPERTIES ('towpath.member.us.generation')")
    assert members_of(DeltaTable(str(eu.path("mirror"))).metadata().configuration) == ["eu"]
    us.sql("UPDATE mirror SET v = -1 WHERE id = 1")
    us.capture()
    with pytest.raises(TargetError, match="or it was restored to a version before this destination joined it"):
        us.apply_all()
    shutil.rmtree(tmp_path / "us")  # another store, which begins with smaller seqs than the one before
    mariadb11.execute("RESET MASTER")
    returned = Member(tmp_path, us.server, us.db, "us", overrides=MODES, start="now")
    returned.sql(*[f"DELETE FROM {table}" for table in TABLES])
    returned.capture()
    fill(returned)
    returned.level()
    for loop in (eu, returned):
        loop.sql(*[f"UPDATE {table} SET v = -2 WHERE id = 5" for table in TABLES])
        loop.level()
        require_own_and_proved(loop)


@pytest.mark.long
def test_a_renamed_table_waits_for_a_snapshot(pair: tuple[Member, Member]) -> None:
    eu, us = pair
    us.level()
    eu.level()
    eu.sql("RENAME TABLE mirror TO other", "UPDATE other SET v = -1 WHERE id = 5")
    us.sql("UPDATE mirror SET v = -1 WHERE id = 5")
    eu.level()
    us.level()
    assert set(BatchService(eu.config).subscription().parked) == {f"{eu.db}.other"}
    us.require_own()
    pipeline.snapshot(eu.config, [f"{eu.db}.other"])
    eu.sql("UPDATE other SET v = -2 WHERE id = 6")
    eu.level()
    eu.require_own("other", "marked", "history", "log")
    assert [row["v"] for row in eu.delta("mirror", order="1, _source") if row["_source"] == "eu"] == list(range(20))


@pytest.mark.long
def test_columns_are_added_and_widened(pair: tuple[Member, Member]) -> None:
    eu, us = pair
    us.level()
    eu.level()
    eu.sql(*[f"ALTER TABLE {table} ADD COLUMN extra INT NOT NULL DEFAULT 7" for table in ("mirror", "log")])
    eu.level()
    us.sql("INSERT INTO mirror VALUES (500, 1, 'no extra')", "INSERT INTO log VALUES (500, 1, 'no extra')")
    us.level()
    eu.require_own("mirror", "marked")
    us.require_own()
    for table in ("mirror", "log"):
        us.sql(f"ALTER TABLE {table} ADD COLUMN extra BIGINT NOT NULL DEFAULT 9, MODIFY v BIGINT")
        us.sql(f"UPDATE {table} SET v = 5000000000, extra = 6000000000 WHERE id = 1")
        eu.sql(f"INSERT INTO {table} VALUES (501, 2, 'narrow', 3)")
    us.level()
    eu.level()
    for loop in pair:
        loop.require_own("mirror")
        assert pipeline.verify(loop.config, [f"{loop.db}.mirror"], wait_s=10).state == "proved"
    eu.sql("ALTER TABLE mirror RENAME COLUMN note TO remark, DROP COLUMN extra")
    us.sql("UPDATE mirror SET note = 'kept', extra = 1 WHERE id = 2")
    eu.sql("UPDATE mirror SET remark = 'renamed' WHERE id = 2")
    us.level()
    eu.level()
    for loop in pair:
        loop.require_own("mirror")
    us.sql("ALTER TABLE mirror CHANGE note remark VARCHAR(20)", "UPDATE mirror SET remark = 'later' WHERE id = 3")
    eu.sql("ALTER TABLE mirror ADD COLUMN extra INT", "UPDATE mirror SET extra = 4 WHERE id = 4")
    eu.level()
    us.level()
    for loop in pair:
        loop.require_own("mirror")


@pytest.mark.long
def test_an_orphan_of_one_beside_merges_of_the_other(
    pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    eu, us = pair
    us.level()
    eu.level()
    for i in range(3):
        for loop in pair:
            loop.sql(*[f"UPDATE {table} SET v = v + 1 WHERE id % 3 = {i % 3}" for table in TABLES])
            loop.sql(*[f"DELETE FROM {table} WHERE id = {i}" for table in TABLES])
            loop.capture()

    def others() -> None:
        us.apply_all(15)
        eu.apply_all(10)

    with monkeypatch.context() as patch:
        merge_overtaken(eu, eu.fetch(14), patch, others)
    eu.apply_all()
    require_own_and_proved(*pair)


@pytest.mark.long
def test_a_snapshot_of_one_beside_the_other(
    mysql9: Server, mariadb11: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    eu, us = members(mysql9, mariadb11, tmp_path, database, start="snapshot", snapshot="{chunk_rows: 7}")
    for loop in (eu, us):
        fill(loop)
        loop.capture()
    pipeline.snapshot(us.config)
    us.level()
    us.require_own()
    killed: list[str] = []

    def die(table: str) -> None:
        if table.endswith("mirror") and not killed:
            killed.append(table)
            raise KeyboardInterrupt  # joined, and in a new generation without rows

    with monkeypatch.context() as patch:
        patch.setattr(commit, "before_statement", die)
        with pytest.raises(KeyboardInterrupt):
            pipeline.snapshot(eu.config)
    us.sql("INSERT INTO mirror VALUES (700, 7, 'beside')")
    us.level()
    us.require_own()
    pipeline.snapshot(eu.config)

    def die_late(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # dies after the commit, before it is noted
        patch.setattr(SnapshotFiles, "mark_loaded", die_late)
        with pytest.raises(KeyboardInterrupt):
            pipeline.snapshot(eu.config, [f"{eu.db}.log"])
    pipeline.snapshot(eu.config, [f"{eu.db}.log"])
    for loop in (eu, us):
        loop.sql(*[f"UPDATE {table} SET v = -1 WHERE id = 5" for table in TABLES])
        loop.level()
    with mysql9.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")  # so only a snapshot sees it
        cursor.execute(f"UPDATE `{eu.db}`.mirror SET note = 'unseen' WHERE id = 6")
        connection.commit()
    pipeline.snapshot(eu.config, [f"{eu.db}.{table}" for table in TABLES])
    require_own_and_proved(eu, us)


@pytest.mark.long
def test_a_replay_of_one_leaves_the_other_alone(pair: tuple[Member, Member]) -> None:
    eu, us = pair
    us.level()
    eu.level()
    spark = acquire(eu.config.spark).spark
    for table in TABLES:
        own = target_of(eu.config, f"{eu.db}.{table}")
        spark.sql(f"DELETE FROM {own.sql} WHERE id = 3")  # damages both members
    pipeline.replay(eu.config, [f"{eu.db}.{table}" for table in TABLES])
    eu.require_own()
    assert all(len(us.own(table)) == 19 for table in TABLES)
    pipeline.replay(us.config, [f"{us.db}.{table}" for table in TABLES])
    for loop in pair:
        loop.sql(*[f"UPDATE {table} SET v = -1 WHERE id = 5" for table in TABLES])
        loop.level()
        require_own_and_proved(loop)


@pytest.mark.long
def test_a_replay_that_was_cut_off_goes_on_from_the_rows_that_are_there(
    pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    eu, us = pair
    us.level()
    eu.level()
    altered = TABLES[:3]  # old rows of a changelog lack new columns, which are then not compared
    eu.sql(*[f"ALTER TABLE {table} ADD COLUMN extra{i} INT" for i in range(2) for table in altered])
    eu.level()

    def die(*_: object) -> None:
        raise KeyboardInterrupt  # in a new generation, which has no position

    with monkeypatch.context() as patch:
        patch.setattr(shared_rows, "_in_shape", die)
        for table in TABLES:
            with pytest.raises(KeyboardInterrupt):
                pipeline.replay(eu.config, [f"{eu.db}.{table}"])
    for loop in pair:
        loop.sql(*[f"UPDATE {table} SET v = -1, id = 100 WHERE id = 5" for table in TABLES])
        loop.level()
    assert len(retry_parked(eu.config)) == len(TABLES)
    require_own_and_proved(*pair)


@pytest.mark.long
def test_what_a_shared_table_refuses(pair: tuple[Member, Member], tmp_path: Path, database: Database) -> None:
    eu, us = pair
    eu.sql("CREATE TABLE clash (id INT PRIMARY KEY, v INT)", "INSERT INTO clash VALUES (1, 1)")
    us.sql("CREATE TABLE clash (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO clash VALUES (1, 'a')")
    eu.level()
    us.capture()
    with pytest.raises(TargetError, match="column v has the type string, and the shared Delta table has it as int"):
        us.apply_all()
    eu.sql("UPDATE clash SET v = 2")  # one failing member does not stop the others
    eu.level()
    eu.require_own("clash")
    group = collect(us.config, group=True)["group"]
    assert [member["destination"] for member in group["members"]] == ["eu", "us"]
    assert group["tables"][f"{eu.db}.clash"] == ["eu"]
    times = [member["complete_until"] for member in group["members"]]
    assert group["complete_until"] == min(times)
    (tmp_path / "conf" / "us.yaml").write_text("source: 7", encoding="utf-8")
    group = collect(eu.config, group=True)["group"]
    assert group["complete_until"] is None
    assert {member["destination"]: member["error"] is None for member in group["members"]} == {"eu": True, "us": False}
    alone = eu.config.apply.model_copy(update={"shared": False})
    with pytest.raises(TargetError, match=r"shared by several destinations \(eu\), and apply.shared is false"):
        target_of(eu.config.model_copy(update={"apply": alone}), f"{eu.db}.clash").state()
    with pytest.raises(UnsupportedError, match="rows of several sources"):
        read_as_of(acquire(eu.config.spark).spark, eu.config, seq=eu.delta("clash")[0]["id"], tables=[f"{eu.db}.clash"])


@pytest.mark.long
def test_the_owner_of_a_table_cannot_share_it_in_place(pair: tuple[Member, Member], tmp_path: Path) -> None:
    eu, us = pair
    alone = Loop(tmp_path, eu.server, eu.db, name="alone", start="now")
    alone.capture()
    eu.sql("UPDATE mirror SET v = 7 WHERE id = 1")
    alone.capture()
    alone.apply_all()
    us.capture()
    with pytest.raises(TargetError, match=r"belongs to the destination 'alone' alone, and apply\.shared is true"):
        us.apply_all()
    before = alone.delta("mirror"), alone.version("mirror")
    eu.sql("UPDATE mirror SET v = 8 WHERE id = 1")
    alone.capture()
    owned = alone.config
    alone.config = _sharing(owned, shared=True)
    _require_refused(alone, r"belongs to the destination 'alone' alone, and apply\.shared is true")
    assert (alone.delta("mirror"), alone.version("mirror")) == before
    alone.config = owned
    pipeline.snapshot(owned, [f"{eu.db}.mirror"])  # the refused ones have left the table out of the batches
    alone.require_equal("mirror")


@pytest.mark.long
def test_a_member_cannot_own_a_shared_table(pair: tuple[Member, Member]) -> None:
    eu, us = pair
    us.level()
    eu.level()
    before = eu.delta("mirror", order="1, _source"), eu.version("mirror")
    eu.sql("UPDATE mirror SET v = 8 WHERE id = 1")
    eu.capture()
    shared = eu.config
    eu.config = _sharing(shared, shared=False)
    _require_refused(eu, r"shared by several destinations \(eu, us\), and apply\.shared is false")
    assert (eu.delta("mirror", order="1, _source"), eu.version("mirror")) == before
    eu.config = shared
    pipeline.snapshot(shared, [f"{eu.db}.mirror"])  # the refused ones have left the table out of the batches
    eu.level()
    for loop in pair:
        loop.require_own()


def _sharing(config: DestinationConfig, *, shared: bool) -> DestinationConfig:
    update = {"shared": shared, "schema_changes": "additive"}
    return config.model_copy(update={"apply": config.apply.model_copy(update=update)})


def _require_refused(loop: Loop, message: str) -> None:
    """Checks that nothing that writes into the Delta table or reads it goes on."""
    table = f"{loop.db}.mirror"
    with pytest.raises(TargetError, match=message):
        loop.apply_all()
    with pytest.raises(CdcError, match=message):
        pipeline.snapshot(loop.config, [table])
    with pytest.raises(CdcError, match=message):
        pipeline.replay(loop.config, [table])
    assert pipeline.verify(loop.config, [table], wait_s=0).state != "proved"


@pytest.mark.long
def test_a_snapshot_that_was_cut_off_leaves_the_member_out_until_the_next_one(
    pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    eu, us = pair
    us.level()
    eu.level()

    def die(table: str) -> None:
        raise KeyboardInterrupt  # in a new generation, which has no rows and no position

    with monkeypatch.context() as patch:
        patch.setattr(commit, "before_statement", die)
        for table in TABLES:
            with pytest.raises(KeyboardInterrupt):
                pipeline.snapshot(eu.config, [f"{eu.db}.{table}"])
    for loop in (us, eu):
        loop.sql(*[f"UPDATE {table} SET v = -1, id = 100 WHERE id = 5" for table in TABLES])
        loop.level()
    us.require_own()
    assert set(BatchService(eu.config).subscription().parked) == {f"{eu.db}.{table}" for table in TABLES}
    pipeline.snapshot(eu.config, [f"{eu.db}.{table}" for table in TABLES])
    for loop in pair:
        loop.sql(*[f"DELETE FROM {table} WHERE id = 6" for table in TABLES])
        loop.level()
        require_own_and_proved(loop)
