"""One destination under random DML and DDL, snapshots, replays, lost tables, faults and kills, and its checks.

Whatever happens in a scenario, its end is always the same: everything is brought level by what the refusals name as the
way out. Then each table equals SELECT in its mode, by a comparison that shares no code with Towpath; ``cdc verify`` says
the same; rows that are deleted then are marked, versions are closed; and a value that is changed in the lake behind
Towpath's back is found by both.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError
from cdc.batches.lease import Lease
from cdc.batches.service import BatchService
from cdc.config import load
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.lake.apply.schema import spark_lake
from cdc.lake.jobs.job import Job
from cdc.lake.runtime import session
from cdc.meta import ParkedTable
from cdc.source.snapshot import SnapshotFiles
from cdc.testing.servers import Server
from tests.fault.support import command
from tests.nemesis.schema_checks import delta, history_faults, table_faults
from tests.nemesis.schema_workload import MODES, SchemaWorkload
from tests.support.apply import OWNER, Loop
from tests.support.capturing import capturing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.lake.verify.report import VerificationReport

_SETTLE = 6
"""Runs in which everything must be level: each brings parked tables back, and may park others by their DDL."""


class Killed(BaseException):
    """Stands for kill -9 of a process that works inside this one."""


class InjectedFault(RuntimeError):
    """A fault of the lake."""


class Scenario:
    """One destination with tables of every mode."""

    def __init__(self, seed: int, server: Server, database: str, folder: Path) -> None:
        self.rng = random.Random(f"schema {seed}")
        self.server, self.folder = server, folder
        self.steps: list[str] = []
        self._began = time.monotonic()
        self._away: dict[Path, Path] = {}
        starts_full = self.rng.random() < 0.5
        if not starts_full:
            self._configure(database, "now" if self._names_no_columns else None)
            self.capture()
        self.workload = SchemaWorkload(server, database, self.rng, self.steps)
        if self._names_no_columns and not starts_full:
            self.workload.before_ddl = self.loop.capture
        self.workload.run(self.rng.randrange(5, 15), ddl=0.1)
        if starts_full:
            self._configure(database, "snapshot")
            if self._names_no_columns:
                self.workload.before_ddl = self.loop.capture

    @property
    def _names_no_columns(self) -> bool:
        """Whether the server's binlog names no columns. Then it is read from its end only, and capture must have caught
        up before a DDL statement."""
        return self.server.kind.name == "mysql56"

    @property
    def _ddl_meanwhile(self) -> float:
        """The share of DDL while capture runs."""
        return 0.0 if self._names_no_columns else 0.15

    def _configure(self, database: str, start: str | None) -> None:
        """Makes the destination. ``start``: ``source.start``; None: the position before the first statement."""
        overrides = ", ".join(f"DB.{name}: {{mode: {mode}}}" for name, mode in MODES.items())
        self.loop = Loop(
            self.folder, self.server, database, overrides=overrides, apply="on_error: park", start=start or ""
        )
        file = self.loop.config.file
        text = file.read_text(encoding="utf-8")
        file.write_text(text + "snapshot: {chunk_rows: 7, parallel: 2}\n", encoding="utf-8")
        self.loop.config = load(file)

    def log(self, step: str) -> None:
        self.steps.append(f"{time.monotonic() - self._began:6.1f} s  {step}")

    def play(self, rounds: int) -> None:
        """Makes as many random steps, and checks everything."""
        self.capture()
        others = [self.apply_one, self.apply_all, self.replay, self.lose_table, self.run, self.snapshot]
        kills = [self.killed_apply, self.killed_snapshot, self.killed_capture]
        steps = [self.failed_statement, self.snapshot, self.rng.choice(kills)]
        steps += [self.rng.choice(others + kills) for _ in range(rounds - len(steps))]
        self.rng.shuffle(steps)
        for step in steps:
            self.workload.run(self.rng.randrange(2, 8))
            if self.rng.random() < 0.7:
                self.capture()
            step()
            if self.rng.random() < 0.5:
                self.bring_back()
        self.bring_back()
        self.settle()
        self.require_equal()
        self.delete_rows()
        self.require_found()

    # ------------------------------------------------------------ steps

    def capture(self) -> None:
        self.log("capture")
        self.loop.capture()

    def killed_capture(self) -> None:
        """Kills capture while the application goes on; the next one continues from the same store."""
        self.log("capture as a process, with traffic, and kill -9")
        before, config = pipeline.stored_seq(self.loop.config), self.loop.config
        with (self.folder / "capture.log").open("ab") as log:
            process = subprocess.Popen(command(config, "capture"), stdout=log, stderr=log)
        try:
            self.workload.run(self.rng.randrange(3, 9), ddl=self._ddl_meanwhile)
            deadline = time.monotonic() + 15.0  # it may have nothing to capture: all steps were refused or rolled back
            while pipeline.stored_seq(config) == before and time.monotonic() < deadline:
                assert process.poll() is None, (self.folder / "capture.log").read_text()[-2000:]
                time.sleep(0.02)
            time.sleep(self.rng.uniform(0.0, 0.2))
        finally:
            process.kill()
            process.wait()

    def apply_one(self) -> None:
        self.log("apply one batch")
        service = BatchService(self.loop.config)
        lease = service.get(OWNER, wait_s=0)
        if lease is not None:
            self._merge(lease)

    def apply_all(self) -> None:
        self.log("apply")
        service = BatchService(self.loop.config)
        while (lease := service.get(OWNER, wait_s=0)) is not None:
            self._merge(lease)

    def _merge(self, lease: Lease) -> None:
        try:
            results = pipeline.merge(self.loop.config, lease)
        except CdcError as error:
            self.log(f"… the batch failed: {type(error).__name__}: {error}")
            pipeline.finalize(self.loop.config, lease, False)
            raise
        except BaseException:
            pipeline.finalize(self.loop.config, lease, False)
            raise
        pipeline.finalize(self.loop.config, lease, True, results)
        for result in results:
            if result.parked is not None:
                self.log(f"… parked: {result.table}, {result.parked.due}: {result.parked.reason}")

    def run(self) -> None:
        """Works as a scheduled run does: parked tables first, then the batches."""
        pipeline.retry_parked(self.loop.config)
        self.apply_all()

    def killed_apply(self) -> None:
        """Merges a batch, or its first statements, and never acks it."""
        lease = BatchService(self.loop.config).get(OWNER, wait_s=0)
        if lease is None:
            return
        statements_left = [self.rng.choice((0, 1, 2, 1000))]
        self.log(
            f"a batch is merged, and its process is killed after {statements_left[0]} statements, or before the ack"
        )

        def die(table: str, *_: str) -> None:
            statements_left[0] -= 1
            if statements_left[0] < 0:
                raise InjectedFault("the process was killed")

        with replaced(commit, "before_statement", die), replaced(spark_lake, "before_step", die), suppress(CdcError):
            pipeline.merge(self.loop.config, lease)

    def failed_statement(self) -> None:
        """Lets a statement fail at random, so that its table is parked."""
        statements_left = [self.rng.randrange(6)]

        def fail(table: str, *_: str) -> None:
            statements_left[0] -= 1
            if statements_left[0] == 0:
                self.log(f"… a statement of {table} fails")
                raise InjectedFault("the object store answers 503")

        with replaced(commit, "before_statement", fail), replaced(spark_lake, "before_step", fail):
            self.apply_all()

    def lose_table(self) -> None:
        """Moves a Delta table away."""
        table = self.rng.choice(list(MODES))
        path = self.loop.path(table)
        if path.exists() and path not in self._away:
            self.log(f"the Delta table of {table} is moved away")
            self._away[path] = path.rename(self.folder / f"away-{len(self.steps)}")
        self.workload.run(2, ddl=0.1)
        self.capture()
        self.apply_all()

    def bring_back(self) -> None:
        for path, away in self._away.items():
            self.log(f"the Delta table {path.name} is put back")
            assert not path.exists() or not any(path.glob("_delta_log/*.json")), f"{path} was made again"
            if path.exists():
                path.rename(path.with_name(path.name + ".empty"))
            away.rename(path)
        self._away.clear()

    def _chosen(self) -> list[str] | None:
        """Draws tables for a snapshot: one that is there, or all that are due (None)."""
        tables = [name for name in self.workload.tables() if self.loop.path(name) not in self._away]
        if self.rng.random() < 0.4 or not tables:
            return None
        return [f"{self.loop.db}.{self.rng.choice(tables)}"]

    def snapshot(self) -> None:
        """Takes a snapshot while the application goes on."""
        self.capture()
        chosen = self._chosen()
        self.log(f"snapshot of {chosen or 'all that are due'}, with traffic")
        traffic = threading.Thread(target=self.workload.run, args=(self.rng.randrange(3, 9), self._ddl_meanwhile))
        with capturing(self.loop.config):
            traffic.start()
            try:
                snapshot = pipeline.snapshot(self.loop.config, chosen)
                self.log(
                    f"… loaded {[(result.table.partition('.')[2], result.rows, result.reread) for result in snapshot]}"
                )
            except CdcError as error:
                self.log(f"… snapshot refused: {type(error).__name__}: {error}")
            finally:
                traffic.join()

    def killed_snapshot(self) -> None:
        """Kills a snapshot at one of the moments that matter, and sometimes resumes it at once."""
        places: list[tuple[Any, str]] = [(SnapshotFiles, "mark_loaded"), (Job, "mark"), (Job, "unpark")]
        places += [(commit, "before_statement"), (spark_lake, "before_step")]
        owner, name = self.rng.choice(places)
        after, original = self.rng.random() < 0.5, getattr(owner, name)

        def kill(*arguments: Any, **named: Any) -> Any:
            if after:
                original(*arguments, **named)
            raise Killed

        self.capture()
        chosen = self._chosen()
        self.log(f"snapshot of {chosen or 'all that are due'}, killed {'after' if after else 'before'} {name}")
        with capturing(self.loop.config), replaced(owner, name, kill):
            try:
                pipeline.snapshot(self.loop.config, chosen)
            except Killed:
                self.log("… killed")
            except CdcError as error:
                self.log(f"… snapshot refused: {type(error).__name__}: {error}")
        if self.rng.random() < 0.5:
            with capturing(self.loop.config):
                try:
                    pipeline.snapshot(self.loop.config, chosen)
                except CdcError as error:
                    self.log(f"… snapshot refused: {type(error).__name__}: {error}")

    def replay(self) -> None:
        tables = [name for name in self.workload.tables() if self.loop.path(name).exists()]
        if not tables:
            return
        table = f"{self.loop.db}.{self.rng.choice(tables)}"
        self.log(f"replay of {table}")
        try:
            pipeline.replay(self.loop.config, [table])
        except CdcError as error:
            self.log(f"… replay refused: {type(error).__name__}: {error}")

    # ------------------------------------------------------------ the end

    def parked(self) -> dict[str, ParkedTable]:
        return BatchService(self.loop.config).subscription().parked

    def settle(self) -> None:
        """Brings everything level, by what a refusal names as the way out."""
        self.log("settle")
        for name, mode in MODES.items():
            if mode == "append" and name in self.workload.tables():
                self.workload.touch(name)
        for _ in range(_SETTLE):
            self.capture()
            pipeline.retry_parked(self.loop.config)
            self.apply_all()
            tables = {f"{self.loop.db}.{name}" for name in self.workload.tables()}
            waiting = sorted(tables & set(self.parked()))
            if not waiting:
                return
            for table in waiting:
                self.log(f"parked: {table}, {self.parked()[table].due}: {self.parked()[table].reason}")
            with capturing(self.loop.config):
                pipeline.snapshot(self.loop.config, waiting)
        assert not waiting, f"parked for good: {self.parked()}"

    # ------------------------------------------------------------ checks

    def require_equal(self) -> None:
        """Compares every table with SELECT, and then lets Towpath verify itself."""
        faults = [fault for table in self.workload.tables() for fault in self._faults(table)]
        assert not faults, "silent differences:\n" + "\n".join(faults)
        report = self._verify()
        self.log(f"verify: {report.state}")
        left_out = {table.mode for table in report.tables if table.checksums.left_out}
        assert report.state == ("partial" if left_out else "proved"), report.document()
        assert left_out <= {"append"}, "only a changelog keeps null in the older rows of a column"

    def _faults(self, table: str) -> list[str]:
        return table_faults(
            self.server,
            self.loop.db,
            self._spark(),
            self.loop.path(table),
            table=table,
            mode=MODES.get(table, "upsert"),
            keys=[column["name"] for column in self.workload.columns(table) if column["key"] == "PRI"],
        )

    def _spark(self) -> SparkSession:
        return session.acquire(self.loop.config.spark).spark

    def _verify(self, tables: list[str] | None = None) -> VerificationReport:
        with capturing(self.loop.config):
            return pipeline.verify(self.loop.config, tables)

    def delete_rows(self) -> None:
        """Deletes rows of the tables with a history, updates others, and looks for them."""
        chosen = {name: mode for name, mode in MODES.items() if mode in ("soft_delete", "scd2")}
        rows = {}
        for table in [name for name in chosen if name in self.workload.tables()]:
            rows_before = delta(self._spark(), self.loop.path(table))[1]
            ids = sorted(
                {row["id"] for row in rows_before if not row.get("_deleted", False) and row.get("_current", True)}
            )
            deleted = set(ids[::2])
            self.log(f"rows of {table} are deleted: {sorted(deleted)}")
            self.workload.delete(table, deleted)
            self.workload.touch(table)
            rows[table] = rows_before, deleted
        self.capture()
        self.apply_all()
        # Tables that the source no longer has wait until a snapshot of all tables finds that out.
        assert not {f"{self.loop.db}.{name}" for name in rows} & set(self.parked()), self.parked()
        faults: list[str] = []
        for table, (rows_before, deleted) in rows.items():
            now = delta(self._spark(), self.loop.path(table))[1]
            faults += self._faults(table) + history_faults(table, chosen[table], rows_before, now, deleted)
        assert not faults, "\n".join(faults)

    def require_found(self) -> None:
        """Changes a value in the lake behind Towpath's back: both comparisons must find it."""
        for table in self.rng.sample(self.workload.tables(), len(self.workload.tables())):
            mode, path = MODES.get(table, "upsert"), self.loop.path(table)
            columns, rows = delta(self._spark(), path)
            shown = [row for row in rows if not row.get("_deleted", False) and row.get("_current", True)]
            if mode == "append" or "k" not in columns or not shown:
                continue
            victim = self.rng.choice(shown)["id"]
            self.log(f"the row {victim} of {table} is changed in the lake")
            where = {"soft_delete": " AND NOT _deleted", "scd2": " AND _current"}.get(mode, "")
            self._spark().sql(f"UPDATE delta.`{path}` SET k = k + 1000 WHERE id = {victim}{where}").collect()
            assert self._faults(table), "the independent comparison does not see it"
            report = self._verify([f"{self.loop.db}.{table}"])
            assert report.state == "differs", report.document()
            ids = {difference.key["id"] for difference in report.tables[0].checksums.differences}
            assert ids == {str(victim)}, report.document()
            return


@contextmanager
def replaced(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    """Replaces an attribute while the block runs."""
    former = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, former)
