"""``cdc.read_as_of``: all tables as of one transaction, from Delta's versions and from the store, in every mode."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import cdc
from cdc.base.errors import TargetError, UsageError
from cdc.batches.table_batches import TableBatches
from cdc.config import load
from cdc.lake.runtime.spark_settings import OLD_VERSIONS
from cdc.testing.servers import Server
from tests.support.apply import Loop, spark_of

MODES = ("upsert", "soft_delete", "scd2", "append")
OVERRIDES = ", ".join(
    [*(f"DB.{mode}: {{mode: {mode}}}" for mode in MODES[1:]), "DB.plain: {mode: soft_delete, keys: [id]}"]
)
NAMES = (*MODES, "plain")
STEPS = (
    ("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c')",),
    ("UPDATE {t} SET v = 'B' WHERE id = 2", "DELETE FROM {t} WHERE id = 3"),
    ("INSERT INTO {t} VALUES (3, 'again')", "UPDATE {t} SET id = 7 WHERE id = 1"),
    ("UPDATE {t} SET v = 'x'",),
    ("DELETE FROM {t} WHERE id = 7", "INSERT INTO {t} VALUES (7, 'new'), (8, 'eight')"),
    ("DELETE FROM {t} WHERE id IN (2, 8)",),
    ("UPDATE {t} SET v = CONCAT(v, '!')",),
)
Rows = list[tuple[Any, ...]]


def create(loop: Loop, *names: str) -> Loop:
    for name in names:
        key = "NOT NULL" if name == "plain" else "PRIMARY KEY"
        loop.sql(f"CREATE TABLE `{name}` (id INT {key}, v VARCHAR(20))")
    return loop


@pytest.fixture
def loop(mysql9: Server, tmp_path: Path, database: Callable[[Server], str]) -> Loop:
    made = create(Loop(tmp_path, mysql9, database(mysql9), overrides=OVERRIDES), *NAMES)
    made.sql("CREATE TABLE idle (id INT PRIMARY KEY)", "INSERT INTO idle VALUES (5)")
    return made


def step(loop: Loop, number: int, names: Sequence[str] = NAMES) -> tuple[int, Rows]:
    """Runs a step on each table and returns the seq after it, and the rows that each table has then."""
    loop.sql(*(text.format(t=f"`{name}`") for text in STEPS[number] for name in names))
    loop.capture()
    last = TableBatches(loop.config).reader.last_seq()
    assert last is not None
    return last, [tuple(row.values()) for row in loop.select("upsert")]


def rows(frame: DataFrame, where: str = "true") -> Rows:
    return sorted(tuple(row) for row in frame.where(where).select("id", "v").collect())


def replayed(frame: DataFrame) -> Rows:
    """The rows that the changes of an append table lead to."""
    state: dict[int, str] = {}
    for row in frame.orderBy("_seq", "_row").collect():
        if row["_op"] != "insert":
            del state[row["_before"]["id"]]
        if row["_op"] != "delete":
            state[row["id"]] = row["v"]
    return sorted(state.items())


def require(loop: Loop, frame_by_table: dict[str, DataFrame], expected: Rows, seq: int) -> None:
    shown = {name: frame_by_table[f"{loop.db}.{name}"] for name in NAMES}
    assert rows(shown["upsert"]) == expected
    assert rows(shown["soft_delete"], "NOT _deleted") == expected
    assert rows(shown["plain"], "NOT _deleted") == expected
    assert rows(shown["scd2"], "_current") == expected
    assert replayed(shown["append"]) == expected
    for name in MODES[1:]:
        assert shown[name].where(f"_seq > {seq}").count() == 0
    open_ones = shown["scd2"].where("_current != (_valid_to IS NULL) OR _valid_to < _valid_from")
    assert open_ones.count() == 0


def test_a_table_as_of_a_transaction(mysql9: Server, tmp_path: Path, database: Callable[[Server], str]) -> None:
    names = ("upsert",)
    loop = create(Loop(tmp_path, mysql9, database(mysql9)), *names)
    points = [step(loop, 0, names)]
    loop.apply_all()
    points += [step(loop, number, names) for number in (1, 2)]
    loop.apply_all()
    table = f"{loop.db}.upsert"
    for seq, expected in points:
        frame_by_table = cdc.read_as_of(spark_of(loop), loop.config, seq=seq, tables=[table])
        assert rows(frame_by_table[table]) == expected


@pytest.mark.long
@pytest.mark.timeout(900)
def test_each_transaction_in_every_mode(loop: Loop) -> None:
    points = [step(loop, 0)]
    loop.apply_all()
    points += [step(loop, 1), step(loop, 2)]
    loop.apply_all()
    points += [step(loop, n) for n in range(3, len(STEPS))]  # the tables lie behind these
    spark = spark_of(loop)
    for seq, expected in points[1::2]:
        require(loop, cdc.read_as_of(spark, loop.config, seq=seq), expected, seq)
    # Once they are applied, the same rows come from other versions.
    history = {seq: frames(cdc.read_as_of(spark, loop.config, seq=seq)) for seq, _ in points[4:5]}
    loop.apply_all()
    for seq, before in history.items():
        assert frames(cdc.read_as_of(spark, loop.config.file, seq=seq)) == before
    for name in NAMES:
        spark.sql(f"OPTIMIZE delta.`{loop.path(name)}`")
    frame_by_table = cdc.read_as_of(spark, loop.config, seq=points[-1][0])
    require(loop, frame_by_table, points[-1][1], points[-1][0])
    assert rows(frame_by_table[f"{loop.db}.upsert"]) == points[-1][1]
    # The same by GTID and as views.
    with loop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@gtid_executed")
        (gtid,) = cursor.fetchone() or ("",)
    assert rows(cdc.read_as_of(spark, loop.config, gtid=gtid)[f"{loop.db}.upsert"]) == points[-1][1]
    views = cdc.create_views_as_of(spark, loop.config, seq=points[1][0], prefix="old_", tables=[f"{loop.db}.upsert"])
    assert views == {f"{loop.db}.upsert": f"old_{loop.db}_upsert"}
    assert [tuple(row) for row in spark.sql(f"SELECT * FROM old_{loop.db}_upsert ORDER BY id").collect()] == points[1][
        1
    ]


def frames(frame_by_table: dict[str, DataFrame]) -> dict[str, Rows]:
    return {
        table: sorted((tuple(row) for row in frame.select(*sorted(frame.columns)).collect()), key=repr)
        for table, frame in frame_by_table.items()
    }


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_version_older_than_the_retention_of_files_is_read(loop: Loop) -> None:
    """Delta refuses versions that are older than a week, even if none of their files was removed."""
    seq, expected = step(loop, 0)
    loop.apply_all()
    step(loop, 1)
    loop.apply_all()
    month_ago = time.time() - 30 * 86400
    for number, file in enumerate(sorted((loop.path("upsert") / "_delta_log").glob("*.json"))):
        os.utime(file, (month_ago + number, month_ago + number))
    spark = spark_of(loop).newSession()
    spark.conf.set(OLD_VERSIONS, "true")  # as in a session of somebody else
    frame = cdc.read_as_of(spark, loop.config, seq=seq, tables=[f"{loop.db}.upsert"])[f"{loop.db}.upsert"]
    assert spark.conf.get(OLD_VERSIONS) == "true"
    assert rows(frame) == expected
    frame.createOrReplaceTempView("old")
    assert spark.sql("SELECT count(*) FROM old").collect()[0][0] == len(expected)


@pytest.mark.long
def test_what_cannot_be_read_ends_with_one_sentence(loop: Loop) -> None:
    spark, table = spark_of(loop), f"{loop.db}.upsert"
    first = TableBatches(loop.config)
    seq, _ = step(loop, 0)
    with pytest.raises(UsageError, match=r"0 points are given.*Give one of seq, time and gtid"):
        cdc.read_as_of(spark, loop.config)
    with pytest.raises(TargetError, match="there is no Delta table"):
        cdc.read_as_of(spark, loop.config, seq=seq, tables=[table])
    loop.apply_all()
    later, expected = step(loop, 1)
    with pytest.raises(TargetError, match=r"cannot be read from the store: it ends at .* capture has read that far"):
        cdc.read_as_of(spark, loop.config, seq=later + 1000, tables=[table])
    with pytest.raises(UsageError, match="no transaction 00000000-0000-0000-0000-000000000001:5"):
        cdc.read_as_of(spark, loop.config, gtid="00000000-0000-0000-0000-000000000001:5")
    with pytest.raises(UsageError, match="does not say in which time zone"):
        cdc.read_as_of(spark, loop.config, time="2026-01-01 10:00:00")
    loop.sql("ALTER TABLE `upsert` DROP COLUMN v", "INSERT INTO `upsert` VALUES (99)")
    loop.capture()
    end = first.reader.last_seq()
    with pytest.raises(TargetError, match=r"has not got this statement yet: ALTER TABLE `upsert` DROP COLUMN v"):
        cdc.read_as_of(spark, loop.config, seq=end, tables=[table])
    assert rows(cdc.read_as_of(spark, loop.config, seq=later, tables=[table])[table]) == expected
    # The version's files are gone.
    for file in loop.path("upsert").glob("*.parquet"):
        file.unlink()
    with pytest.raises(TargetError, match=r"is not whole now: VACUUM .*cdc replay shop .*upsert --to"):
        cdc.read_as_of(spark, loop.config, seq=later, tables=[table])
    # A table of another destination.
    file = loop.config.file.with_name("other.yaml")
    file.write_text(loop.config.file.read_text().replace("shop/meta", "other/meta"), encoding="utf-8")
    other = load(file)
    with pytest.raises(TargetError, match="belongs to shop, not to other"):
        cdc.read_as_of(spark, other, seq=later, tables=[f"{loop.db}.append"])
