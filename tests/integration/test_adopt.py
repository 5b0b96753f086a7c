"""A Delta table that another tool has made is taken over: compared, repaired, and followed from then on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.base.errors import RetryableError, TargetError, UnsupportedError, UsageError
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.jobs import adopt as job
from cdc.lake.jobs import adopt_compare
from cdc.lake.jobs.results import TableAdoption
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.compare import ledger_faults

Database = Callable[[Server], str]
GOLDEN = Path(__file__).parents[1] / "golden" / "debezium"
MERGE = """MERGE INTO delta.`{path}` t USING changes s ON t.id = s.id
WHEN MATCHED AND s.__deleted = 'true' {deleted}
WHEN MATCHED THEN UPDATE SET *
WHEN NOT MATCHED AND s.__deleted <> 'true' THEN INSERT *"""


class _Killed(BaseException):
    """Stands for a kill: nothing that follows in the process runs."""


class Taken(Loop):
    """A source with the orders that Debezium has read, and the Delta table that a job of Spark made of its JSON."""

    def __init__(self, folder: Path, server: Server, db: str, **options: Any) -> None:
        super().__init__(folder, server, db, start="now", **options)
        self.sql("SET time_zone = '+00:00'", *_statements()[:1])

    def run_workload(self) -> None:
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.db}`")
            cursor.execute("SET time_zone = '+00:00'")
            for statement in _statements()[1:]:
                cursor.execute(statement)
            connection.commit()

    @contextmanager
    def spark(self) -> Iterator[Any]:
        with session.acquire(self.config.spark).tables.one() as lent:
            yield lent.spark

    def statements(self, *statements: str) -> None:
        """Runs statements of Spark, in which TABLE is the Delta table of the orders."""
        with self.spark() as spark:
            for statement in statements:
                spark.sql(statement.replace("TABLE ", f"delta.`{self.path('orders')}` ")).collect()

    def merge_events(self, *, columns: str = "*", layout: str = "", properties: str = "", keeps: bool = False) -> None:
        """Makes the table as a job of Spark does: from Debezium's JSON, batch after batch, by MERGE."""
        path = self.path("orders")
        lines = (GOLDEN / "events.jsonl").read_text(encoding="utf-8").splitlines()
        with self.spark() as spark:
            for at in range(0, len(lines), 200):
                last = {json.loads(line)["id"]: line for line in lines[at : at + 200]}
                frame = spark.createDataFrame([(line,) for line in last.values()], "line STRING")
                frame.selectExpr(f"from_json(line, '{SCHEMA}') AS row").select("row.*").createOrReplaceTempView("read")
                spark.sql(f"SELECT {columns} FROM read").createOrReplaceTempView("changes")
                if at == 0:
                    spark.sql(
                        f"CREATE TABLE delta.`{path}` USING delta{layout} {properties} AS SELECT * FROM changes WHERE false"
                    ).collect()
                deleted = "THEN UPDATE SET *" if keeps else "THEN DELETE"
                spark.sql(MERGE.format(path=path, deleted=deleted)).collect()

    def adopt(self, tool: str = "debezium", **options: Any) -> TableAdoption:
        return pipeline.adopt(self.config, f"{self.db}.orders", tool=tool, **options)

    def fill(self, **options: Any) -> None:
        """Runs the workload, and makes the table."""
        self.capture()
        self.run_workload()
        with self.spark() as spark:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        self.merge_events(**options)

    def require_level(self) -> None:
        """The table equals SELECT, nothing is parked, the ledger joins, and verify proves it."""
        assert BatchService(self.config).subscription().parked == {}
        assert ledger_faults(self.config.apply.target, self.db, "orders") == []
        report = pipeline.verify(self.config, [f"{self.db}.orders"])
        assert report.tables[0].state == "proved", report.document()

    def metrics(self, after: int) -> dict[str, int]:
        """Returns the sums of the metrics of rows of all commits after a version."""
        sums = {"numTargetRowsInserted": 0, "numTargetRowsUpdated": 0, "numTargetRowsDeleted": 0}
        for commit in DeltaTable(str(self.path("orders"))).history():
            if commit["version"] > after:
                for name in sums:
                    sums[name] += int((commit.get("operationMetrics") or {}).get(name, 0))
        return sums


SCHEMA = (
    "id BIGINT, customer STRING, amount STRING, quantity INT, placed BIGINT, packed BIGINT, changed STRING, day INT, "
    "paid SMALLINT, note STRING, __deleted STRING, __op STRING, __source_ts_ms BIGINT"
)
TYPED = (
    "id, customer, CAST(amount AS DECIMAL(10,2)) AS amount, quantity, CAST(timestamp_millis(placed) AS TIMESTAMP_NTZ) AS "
    "placed, CAST(timestamp_micros(packed) AS TIMESTAMP_NTZ) AS packed, CAST(changed AS TIMESTAMP) AS changed, "
    "date_from_unix_date(day) AS day, CAST(paid AS TINYINT) AS paid, note, __deleted, __op"
)
"""What a careful job makes of the events, as long as the session's time zone is UTC."""
FAULTS = (
    "INSERT INTO TABLE SELECT * FROM TABLE WHERE id IN (1, 2)",
    "DELETE FROM TABLE WHERE id IN (10, 11, 12, 13)",
    "UPDATE TABLE SET quantity = 99 WHERE id BETWEEN 20 AND 24 AND id <> 21",
    "INSERT INTO TABLE SELECT id + 1000 AS id, * EXCEPT (id) FROM TABLE WHERE id = 15",
    "INSERT INTO TABLE SELECT CAST(NULL AS BIGINT) AS id, * EXCEPT (id) FROM TABLE WHERE id = 16",
)


def _statements() -> list[str]:
    text = (GOLDEN / "orders.sql").read_text(encoding="utf-8")
    return [statement for statement in text.split(";\n") if statement.strip()]


@pytest.mark.long
@pytest.mark.parametrize("rows_a_range", [20_000, 30])
def test_a_table_of_debezium_is_taken_over(
    tmp_path: Path, mariadb11: Server, database: Database, monkeypatch: pytest.MonkeyPatch, rows_a_range: int
) -> None:
    """Its values are in Debezium's forms, and it has the usual faults. Only rows that differ are written, and only the
    ranges that have them are read; it keeps its history, follows the stream, and equals SELECT."""
    monkeypatch.setattr(adopt_compare, "ROWS_A_RANGE", rows_a_range)
    loop = Taken(tmp_path, mariadb11, database(mariadb11))
    loop.fill(columns=TYPED)
    loop.statements(*FAULTS)
    before = loop.version("orders")
    rows_before = loop.delta("orders")
    with capturing(loop.config):
        planned = loop.adopt(dry_run=True)
        assert loop.version("orders") == before
        assert planned.differing and not planned.done and not planned.rewritten
        assert {(c.column, c.action[:7]) for c in planned.columns} == {
            ("__deleted", "dropped"),
            ("__op", "dropped"),
        }
        result = loop.adopt()
    assert result.done
    assert result.repaired == 2 + 4 + 4 + 1 + 1
    assert result.rows is not None and (result.read < result.rows) == (rows_a_range == 30)
    metrics = loop.metrics(before)
    assert metrics["numTargetRowsInserted"] == 2 + 4 + 4
    assert metrics["numTargetRowsDeleted"] == 4 + 4 + 1 + 1
    loop.require_level()
    delta = DeltaTable(str(loop.path("orders")), version=before)
    assert pa.table(delta.to_pyarrow_table()).num_rows == len(rows_before)
    loop.sql("UPDATE orders SET quantity = 5 WHERE id < 50", "ALTER TABLE orders ADD COLUMN more INT DEFAULT 3")
    loop.sql("DELETE FROM orders WHERE id > 250")
    loop.capture()
    loop.apply_all()
    loop.require_level()


@pytest.mark.long
def test_forms_of_debezium_are_converted_and_deletes_stay_marked(
    tmp_path: Path, mysql9: Server, database: Database
) -> None:
    """A table that has Debezium's own forms (days, milliseconds, texts) and marked deletes is written anew with the
    same partitions and properties. It becomes one of mode soft_delete."""
    loop = Taken(tmp_path, mysql9, database(mysql9), apply="mode: soft_delete")
    loop.fill(
        layout=" PARTITIONED BY (quantity)",
        properties="TBLPROPERTIES ('delta.enableDeletionVectors' = 'true', 'team' = 'sales')",
        keeps=True,
    )
    loop.statements("UPDATE TABLE SET __deleted = 'false' WHERE __deleted = 'true' AND id < 60", *FAULTS[1:3])
    with capturing(loop.config):
        result = loop.adopt()
    assert result.done and result.rewritten
    assert {(c.column, c.now) for c in result.columns if c.action == "converted"} >= {
        ("placed", "timestamp_ntz"),
        ("packed", "timestamp_ntz"),
        ("changed", "timestamp"),
        ("day", "date"),
        ("amount", "decimal(10,2)"),
    }
    assert result.repaired == 7 + 4 + 4, "deletes that were missed, missing rows, other values"
    delta = DeltaTable(str(loop.path("orders")))
    assert delta.metadata().partition_columns == ["quantity"]
    assert delta.metadata().configuration["team"] == "sales"
    loop.require_level()
    loop.sql("UPDATE orders SET note = 'later' WHERE id < 50", "DELETE FROM orders WHERE id > 250")
    loop.capture()
    loop.apply_all()
    loop.require_level()


@pytest.mark.long
def test_a_kill_at_any_step_leaves_a_table_that_can_be_taken_over(
    tmp_path: Path, mariadb11: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before each step that writes, and called again. The source is written to meanwhile."""
    loop = Taken(tmp_path, mariadb11, database(mariadb11))
    loop.fill(columns=TYPED)
    loop.statements(*FAULTS)
    loop.sql("ALTER TABLE orders ADD COLUMN late INT")  # which capture may not have met when the columns are planned
    steps: list[str] = []
    for step in ("columns", "rows", "owner", "position", "check"):

        def die(now: str, step: str = step) -> None:
            steps.append(now)
            if now == step:
                raise _Killed(step)

        monkeypatch.setattr(job, "before_step", die)
        loop.sql(f"UPDATE orders SET quantity = quantity + 1 WHERE id = {len(steps) + 30}")
        with capturing(loop.config), pytest.raises(_Killed):
            loop.adopt()
        assert steps[-1] == step
        (parked,) = BatchService(loop.config).subscription().parked.values()
        assert parked.due == "hold" and "cdc adopt" in parked.reason
        loop.capture()
        loop.apply_all()  # it leaves the table out

    monkeypatch.setattr(job, "before_step", lambda _: None)
    with capturing(loop.config):
        # The process that was killed before the check has left a whole adoption, which is finished here.
        assert loop.adopt().done
    loop.require_level()


KILLING = """
import os, signal, sys, threading, time
from cdc.cli.main import main
from cdc.lake.jobs import adopt
from cdc.lake.runtime import driver

step, delay_s = sys.argv[1], float(sys.argv[2])

def kill():
    time.sleep(delay_s)
    os.kill(driver.pid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

def die(now):
    if now == step:
        threading.Thread(target=kill, daemon=True).start()
        if not delay_s:
            time.sleep(60)

adopt.before_step = die
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_killed_process_is_called_again(tmp_path: Path, mariadb11: Server, database: Database) -> None:
    """SIGKILL for the process and its driver: inside the statement that repairs, between owner and position, and after
    the position."""
    loop = Taken(tmp_path, mariadb11, database(mariadb11))
    loop.fill(columns=TYPED)
    loop.statements(*FAULTS)
    before = loop.version("orders")
    with capturing(loop.config):
        for step, delay_s in (("rows", "1.5"), ("position", "0"), ("check", "0")):
            arguments = [step, delay_s, "--conf-dir", str(loop.config.file.parent)]
            table = f"{loop.db}.orders"
            command = [sys.executable, "-c", KILLING, *arguments, "adopt", "shop", table, "--from", "debezium"]
            done = subprocess.run(command, check=False, timeout=500)
            assert done.returncode == -signal.SIGKILL
            assert pa.table(DeltaTable(str(loop.path("orders")), version=before).to_pyarrow_table()).num_rows
            loop.sql(f"UPDATE orders SET quantity = quantity + 1 WHERE id = {len(step) * 9}")
        assert loop.adopt().done
    loop.require_level()


@pytest.mark.long
def test_a_commit_of_another_program_is_noticed(
    tmp_path: Path, mariadb11: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tool writes at the worst moments: between the comparison and the repair, and behind the owner."""
    loop = Taken(tmp_path, mariadb11, database(mariadb11))
    loop.fill(columns=TYPED)
    loop.statements(*FAULTS)
    for step in ("rows", "owner", "check"):

        def write(now: str, step: str = step) -> None:
            if now == step:
                monkeypatch.setattr(job, "before_step", lambda _: None)
                loop.statements("UPDATE TABLE SET quantity = 77 WHERE id = 40")

        monkeypatch.setattr(job, "before_step", write)
        with capturing(loop.config), pytest.raises(RetryableError, match="another program has written"):
            loop.adopt()
        assert "towpath.destination" not in DeltaTable(str(loop.path("orders"))).metadata().configuration
    with capturing(loop.config):
        assert loop.adopt().repaired == 1
    loop.require_level()
    with pytest.raises(UsageError, match="belongs to this destination already"):
        loop.adopt()


def test_tables_that_cannot_be_taken_over_are_refused(tmp_path: Path, mariadb11: Server, database: Database) -> None:
    """Each refusal says what to do, and changes nothing."""
    loop = Taken(tmp_path, mariadb11, database(mariadb11))
    loop.capture()
    with pytest.raises(TargetError, match="no Delta table that could be taken over"):
        loop.adopt()
    table = pa.table({"id": [1], "customer": ["a"], "strange": [1], "amount": [1.5]})
    write_deltalake(str(loop.path("orders")), table)
    with pytest.raises(UnsupportedError, match="the column amount is double"):
        loop.adopt()
    with pytest.raises(UnsupportedError, match="neither the source nor debezium has the column strange"):
        loop.adopt(dropped=["amount"])
    with pytest.raises(UsageError, match="--drop names nothing"):
        loop.adopt(dropped=["nothing"])
    delta = DeltaTable(str(loop.path("orders")))
    delta.alter.set_table_properties({"towpath.destination": "other"}, raise_if_not_exists=False)
    with pytest.raises(TargetError, match="belongs to the destination 'other'"):
        loop.adopt()
    loop.edit("on_error: block", "on_error: block, mode: append")
    with pytest.raises(UnsupportedError, match="mode append keeps a history"):
        loop.adopt()
    assert DeltaTable(str(loop.path("orders"))).version() == 1
