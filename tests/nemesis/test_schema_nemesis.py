"""Random DML and DDL, with snapshots, replays, lost tables and kills at random moments: no silent difference.

``TOWPATH_SCHEMA_SEEDS`` sets the number of seeds (default: 4, one of each server; ``make test-nemesis``: 60),
``TOWPATH_SCHEMA_SEED`` a single seed to repeat.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc import pipeline
from cdc.batches.service import BatchService
from cdc.capture import Capture
from cdc.config import load
from cdc.errors import CdcError
from cdc.meta import ParkedTable
from cdc.snapshot import SnapshotFiles
from cdc.table_jobs.job import Job
from cdc.targets import MODE_COLUMNS
from cdc.testing.servers import PASSWORD, Server
from spark_jobs.apply import commit
from spark_jobs.apply.schema import evolve
from spark_jobs.runtime import session
from tests.nemesis.schema_workload import MODES, SchemaWorkload
from tests.support.apply import OWNER, Loop
from tests.support.compare import ordered

KINDS = ("mysql9", "mariadb11", "mysql56", "mariadb10")
_ONE = os.environ.get("TOWPATH_SCHEMA_SEED")
_COUNT = int(os.environ.get("TOWPATH_SCHEMA_SEEDS") or 4)
SEEDS = [int(_ONE)] if _ONE else sorted(range(_COUNT), key=lambda seed: seed % len(KINDS))
_ROUNDS = 6
_SETTLE = 6
"""Runs in which everything must be level: each brings parked tables back, and may park others by their DDL."""


class Killed(BaseException):
    """What stands for kill -9 of a process that works inside this one."""


class InjectedFault(RuntimeError):
    """A fault of the lake."""


class Scenario:
    """One destination with tables of every mode."""

    def __init__(self, seed: int, server: Server, database: str, folder: Path) -> None:
        self.rng = random.Random(f"schema {seed}")
        self.server, self.folder = server, folder
        self.steps: list[str] = []
        self._began = time.monotonic()
        overrides = ", ".join(f"DB.{name}: {{mode: {mode}}}" for name, mode in MODES.items())
        starts_full = self.rng.random() < 0.5
        if not starts_full:
            self.loop = Loop(folder, server, database, overrides=overrides, apply="on_error: park")
        self.workload = SchemaWorkload(server, database, self.rng, self.steps)
        self.workload.run(self.rng.randrange(5, 15), ddl=0.1)
        if starts_full:
            self.loop = Loop(folder, server, database, overrides=overrides, apply="on_error: park")
            file = self.loop.config.file
            text = file.read_text(encoding="utf-8")
            begin = text.index("start: {file")
            text = text[:begin] + "start: snapshot" + text[text.index("}", begin) + 1 :]
            file.write_text(text, encoding="utf-8")
        with self.loop.config.file.open("a", encoding="utf-8") as more:
            more.write("snapshot: {chunk_rows: 7, parallel: 2}\n")
        self.loop.config = load(self.loop.config.file)
        self._away: dict[Path, Path] = {}

    def log(self, step: str) -> None:
        self.steps.append(f"{time.monotonic() - self._began:6.1f} s  {step}")

    def play(self) -> None:
        self.capture()
        actions = [self.apply_one, self.apply_all, self.snapshot, self.snapshot, self.replay, self.lose_table]
        actions += [self.killed_apply, self.failed_statement, self.killed_snapshot, self.run]
        for _ in range(_ROUNDS):
            self.workload.run(self.rng.randrange(2, 8))
            if self.rng.random() < 0.7:
                self.capture()
            self.rng.choice(actions)()
            if self.rng.random() < 0.5:
                self.bring_back()
        self.bring_back()
        self.settle()
        self.compare()

    # ------------------------------------------------------------ steps

    def capture(self) -> None:
        self.log("capture")
        self.loop.capture()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Captures while the block runs."""
        stop = threading.Event()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                Capture(self.loop.config).run(stop)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)

        thread = threading.Thread(target=run, name="capture")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)
        if failed:
            raise failed[0]

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

    def _merge(self, lease: Any) -> None:
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
        for one in results:
            if one.parked is not None:
                self.log(f"… parked: {one.table}, {one.parked.due}: {one.parked.reason}")

    def run(self) -> None:
        """What a scheduled run does: parked tables first, then the batches."""
        pipeline.retry_parked(self.loop.config)
        self.apply_all()

    def killed_apply(self) -> None:
        """Merges a batch, or some tables of it, and never acks it."""
        lease = BatchService(self.loop.config).get(OWNER, wait_s=0)
        if lease is None:
            return
        self.log("a batch is merged, and its process is killed before the ack")
        pipeline.merge(self.loop.config, lease)

    def failed_statement(self) -> None:
        """Lets a statement fail at random, so that its table is parked."""
        left = [self.rng.randrange(6)]

        def fail(table: str, *_: str) -> None:
            left[0] -= 1
            if left[0] == 0:
                self.log(f"… a statement of {table} fails")
                raise InjectedFault("the object store answers 503")

        with replaced(commit, "before_statement", fail), replaced(evolve, "before_step", fail):
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
        traffic = threading.Thread(target=self.workload.run, args=(self.rng.randrange(3, 9), 0.15))
        with self.capturing():
            traffic.start()
            try:
                found = pipeline.snapshot(self.loop.config, chosen)
                self.log(f"… loaded {[(one.table.partition('.')[2], one.rows, one.reread) for one in found]}")
            except CdcError as error:
                self.log(f"… snapshot refused: {type(error).__name__}: {error}")
            finally:
                traffic.join()

    def killed_snapshot(self) -> None:
        """Kills a snapshot at one of the moments that matter, and sometimes resumes it at once."""
        places: list[tuple[type, str]] = [(SnapshotFiles, "mark_loaded"), (Job, "mark"), (Job, "unpark")]
        owner, name = self.rng.choice(places)
        after, original = self.rng.random() < 0.5, getattr(owner, name)

        def kill(*arguments: Any, **named: Any) -> Any:
            if after:
                original(*arguments, **named)
            raise Killed

        self.capture()
        chosen = self._chosen()
        self.log(f"snapshot of {chosen or 'all that are due'}, killed {'after' if after else 'before'} {name}")
        with self.capturing(), replaced(owner, name, kill):
            try:
                pipeline.snapshot(self.loop.config, chosen)
            except Killed:
                self.log("… killed")
            except CdcError as error:
                self.log(f"… snapshot refused: {type(error).__name__}: {error}")
        if self.rng.random() < 0.5:
            with self.capturing():
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
            there = {f"{self.loop.db}.{name}" for name in self.workload.tables()}
            waiting = sorted(there & set(self.parked()))
            if not waiting:
                return
            for table in waiting:
                self.log(f"parked: {table}, {self.parked()[table].due}: {self.parked()[table].reason}")
            with self.capturing():
                pipeline.snapshot(self.loop.config, waiting)
        assert not waiting, f"parked for good: {self.parked()}"

    def compare(self) -> None:
        faults: list[str] = []
        for table in self.workload.tables():
            faults += self._faults(table)
        assert not faults, "silent differences:\n" + "\n".join(faults)

    def _faults(self, table: str) -> list[str]:
        mode = MODES.get(table, "upsert")
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM `{self.loop.db}`.`{table}`")
            names = [column[0] for column in cursor.description]
            wanted = _rows(cursor.fetchall())
        path = self.loop.path(table)
        spark = session.acquire(self.loop.config.spark).spark
        if not (path / "_delta_log").exists():
            return [f"{table}: there is no Delta table for {names}, {len(wanted)} rows"]
        frame = spark.read.format("delta").load(str(path))
        columns = [name for name in frame.columns if name not in _METADATA]
        if columns != names:
            return [f"{table} ({mode}): Delta has {frame.columns}, SELECT shows {names}"]
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        faults: list[str] = []
        if mode == "upsert":
            shown = rows
        elif mode == "soft_delete":
            shown = [row for row in rows if not row["_deleted"]]
            faults += _doubles(table, [row["id"] for row in rows if not row["_deleted"]])
        elif mode == "scd2":
            shown = [row for row in rows if row["_current"]]
            faults += _intervals(table, rows, self._keys(table))
        else:
            shown, more = _replayed(table, rows)
            faults += more
        found = _rows([row[name] for name in names] for row in shown)
        if found != wanted:
            lost = [row for row in wanted if row not in found]
            alien = [row for row in found if row not in wanted]
            faults.append(
                f"{table} ({mode}): {names}\n  SELECT has {len(wanted)} rows: {lost[:4]}\n  Delta has {len(found)}: {alien[:4]}"
            )
        return faults

    def _keys(self, table: str) -> list[str]:
        return [column["name"] for column in self.workload.columns(table) if column["key"] == "PRI"]


_METADATA = {name for names in MODE_COLUMNS.values() for name in names} | {
    "_op", "_seq", "_row", "_commit_time", "_gtid", "_before", "_deleted", "_valid_from", "_valid_to", "_current",
}  # fmt: skip


@contextmanager
def replaced(owner: Any, name: str, value: Callable[..., Any]) -> Iterator[None]:
    """Replaces an attribute while the block runs."""
    former = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, former)


def _plain(value: Any) -> Any:
    from decimal import Decimal

    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, Decimal):
        return value.normalize() + 0
    if isinstance(value, int):
        return Decimal(value)
    return value


def _rows(rows: Any) -> list[tuple[Any, ...]]:
    return ordered([_plain(value) for value in row] for row in rows)


def _doubles(table: str, ids: list[int]) -> list[str]:
    return [f"{table}: {ids.count(one)} times id {one}" for one in sorted(set(ids)) if ids.count(one) > 1]


def _intervals(table: str, rows: list[dict[str, Any]], keys: list[str]) -> list[str]:
    """Each key has at most one current version, and its versions do not overlap."""
    faults: list[str] = []
    versions: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        versions.setdefault(tuple(row[key] for key in keys), []).append(row)
        if row["_current"] != (row["_valid_to"] is None):
            faults.append(f"{table}: {row} is current, and closed")
    for key, found in versions.items():
        found.sort(key=lambda row: (row["_valid_from"], row["_valid_to"] is None, row["_valid_to"]))
        if sum(row["_current"] for row in found) > 1:
            faults.append(f"{table}: {key} has several current versions")
        for one, following in itertools.pairwise(found):
            if one["_valid_to"] is None or one["_valid_to"] > following["_valid_from"]:
                faults.append(f"{table}: {key} has versions that overlap: {one}, {following}")
    return faults


def _replayed(table: str, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the rows that a changelog leads to, and its faults."""
    faults, places = [], [(row["_seq"], row["_row"]) for row in rows]
    if len(places) != len(set(places)):
        faults.append(f"{table}: a change is there twice")
    state: dict[int, dict[str, Any]] = {}
    loaded = -1
    for row in sorted(rows, key=lambda row: (row["_seq"], row["_op"] != "snapshot", row["_row"])):
        if row["_op"] == "truncate":
            state.clear()
            continue
        if row["_op"] == "snapshot" and row["_seq"] != loaded:
            state.clear()
            loaded = row["_seq"]
        if row["_op"] == "delete":
            state.pop(row["id"], None)
            continue
        if row["_before"] is not None and row["_before"]["id"] != row["id"]:
            state.pop(row["_before"]["id"], None)
        state[row["id"]] = row
    return list(state.values()), faults


@pytest.fixture(scope="session", autouse=True)
def _spark() -> Iterator[None]:
    yield
    session.discard()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", SEEDS)
def test_no_silent_difference(
    number: int,
    request: pytest.FixtureRequest,
    database: Callable[[Server], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOWPATH_TEST_PASSWORD", PASSWORD)
    # Of servers without GTIDs: nothing else commits there, and nobody waits for a minute.
    monkeypatch.setattr("cdc.snapshot.positions.MARGIN_S", 1.0)
    kind = KINDS[number % len(KINDS)]
    server: Server = request.getfixturevalue(kind)
    scenario = Scenario(number, server, database(server), tmp_path)
    try:
        scenario.play()
    except BaseException as error:
        listed = "\n".join(scenario.steps)
        error.add_note(
            f"seed {number} ({kind}) failed after these steps:\n{listed}\n"
            f"To repeat it: make test-nemesis TOWPATH_SCHEMA_SEED={number}"
        )
        raise
