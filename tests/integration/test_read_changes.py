"""``cdc.read_changes``: exactly the changes between two transactions, in every mode, also around a statement that alters
the table, and through a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cdc
from cdc.base.errors import CutOffError, UsageError
from cdc.lake.runtime import session
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.support.apply import Loop

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_the_changes_between_two_transactions(
    mysql9: Server, tmp_path: Path, database: Callable[[Server], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.log: {mode: append}")
    loop.sql(*(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in ("t", "log", "idle")))
    loop.sql("INSERT INTO t VALUES (1, 1), (2, 2)", "INSERT INTO log VALUES (1, 1), (2, 2)")
    first = loop.capture_seq()
    loop.sql("UPDATE t SET v = 5 WHERE id = 1", "UPDATE log SET v = 5 WHERE id = 1")
    loop.sql(
        "ALTER TABLE t ADD w VARCHAR(9), MODIFY v BIGINT", "DELETE FROM t WHERE id = 2", "DELETE FROM log WHERE id = 2"
    )
    loop.sql("INSERT INTO t VALUES (3, 3, 'x')")
    second = loop.capture_seq()
    loop.sql("INSERT INTO t VALUES (4, 4, 'later')", "INSERT INTO log VALUES (4, 4)")
    end = loop.capture_seq()
    spark, table = session.acquire(loop.config.spark).spark, f"{loop.db}.t"
    changes = cdc.read_changes(spark, loop.config, table, after_seq=first, last_seq=second)
    assert changes.columns == ["id", "v", "w", "_op", "_seq", "_row", "_commit_time", "_gtid", "_before"]
    assert dict(changes.dtypes)["v"] == "bigint"
    rows = changes.orderBy("_seq", "_row").collect()
    assert [(row["_op"], row["id"], row["v"], row["w"]) for row in rows] == [
        ("update", 1, 5, None), ("delete", 2, 2, None), ("insert", 3, 3, "x"),
    ]  # fmt: skip
    assert [row["_before"] and row["_before"]["v"] for row in rows] == [1, 2, None]
    assert all(first < row["_seq"] <= second for row in rows)
    # The same from the lake, where the table's mode keeps changes; nothing has to be applied for read_changes.
    loop.apply_all()
    log = f"{loop.db}.log"
    frame = cdc.read_changes(spark, str(loop.config.file), log, after_seq=first, last_seq=second)
    lake = spark.read.format("delta").load(str(loop.path("log"))).where(f"_seq > {first} AND _seq <= {second}")
    assert frame.columns == lake.columns
    assert sorted(map(str, frame.collect())) == sorted(map(str, lake.collect()))
    assert frame.count() == 2
    nothing = cdc.read_changes(spark, loop.config, f"{loop.db}.idle", after_seq=first, last_seq=end)
    assert (nothing.columns[0], nothing.count()) == ("id", 0)
    assert cdc.read_changes(spark, loop.config, table, after_seq=end, last_seq=end).count() == 0
    with pytest.raises(UsageError, match="the store ends at"):
        cdc.read_changes(spark, loop.config, table, after_seq=first, last_seq=end + 1000)

    def removed(self: StoreReader, after_seq: int) -> None:
        raise CutOffError("retention has removed them")

    monkeypatch.setattr(StoreReader, "require_kept", removed)
    with pytest.raises(CutOffError):
        cdc.read_changes(spark, loop.config, table, after_seq=first, last_seq=second)
