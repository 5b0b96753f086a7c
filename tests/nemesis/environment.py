"""The environment of a scenario: source, store, meta, lake and clock of one destination, and the steps on them."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from cdc.base.errors import CdcError
from cdc.base.targets import table_path
from cdc.batches.lease import Lease
from cdc.batches.service import BatchService
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.lake.runtime import session
from cdc.store.formats.layout import segments_folder
from cdc.testing.servers import HOST, USER
from tests.nemesis.source import Source
from tests.nemesis.workload import APPEND
from tests.support.apply import LOCAL
from tests.support.compare import Row, changelog_faults, mirror_faults, ordered

OWNER = "nemesis"
KEYS = ("id",)
_COMMAND_S = 120.0


class Clock:
    """The clock of leases: the machine's clock plus an offset that a scenario changes."""

    def __init__(self) -> None:
        self.offset = timedelta()

    @property
    def datetime(self) -> type[datetime]:
        """A replacement for ``datetime`` in a module that reads the clock."""
        clock = self

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Self:
                moment = datetime.now(tz or UTC) + clock.offset
                return cls.fromisoformat(moment.isoformat())

        return Shifted


@dataclass
class Environment:
    """The destination of one scenario. ``steps`` lists the steps so far, for the report of a failure."""

    source: Source
    folder: Path
    rng: random.Random
    clock: Clock
    steps: list[str] = field(default_factory=list)
    config: DestinationConfig = field(init=False)
    damaged_table: str = ""
    """The table that the fault has damaged."""
    accepted: set[str] = field(default_factory=set)
    """Tables whose data loss the operator has accepted; they are no longer compared."""
    _began: float = field(default_factory=time.monotonic)
    _generation: int = 0
    _remembered: dict[str, list[Row]] = field(default_factory=dict)

    # ------------------------------------------------------------ the destination

    def begin(self, start: str = "{file: binlog.000001, pos: 4}") -> None:
        """Begins a new destination: new store, new meta, new target."""
        self._generation += 1
        self.accepted.clear()
        self.folder.joinpath("conf").mkdir(exist_ok=True)
        self.configure(start)

    def configure(self, start: str) -> None:
        """Writes the configuration with this ``source.start``."""
        name, database = f"run{self._generation}", self.source.workload.database
        file = self.folder / "conf" / "shop.yaml"
        file.write_text(
            f"source: {{url: '{self.source.flavor}://{USER}@{HOST}:{self.source.server.port}',"
            f" password_env: TOWPATH_TEST_PASSWORD, server_id: {self.rng.randrange(1000, 2**31)}, start: {start}}}\n"
            f"tables: {{include: ['{database}\\..*'], overrides: {{{database}.{APPEND}: {{mode: append}}}}}}\n"
            f"store: {{path: {name}/store, segment_bytes: 65536}}\nmeta: {{path: {name}/meta}}\n"
            f"apply: {{target: {name}/lake, on_error: block}}\nbatch: {{max_wait_s: 0}}\nspark: {LOCAL}\n",
            encoding="utf-8",
        )
        self.config = load(file)

    @property
    def store(self) -> Path:
        return Path(self.config.store.path)

    @property
    def meta(self) -> Path:
        return Path(self.config.meta.path)

    def table(self, name: str) -> Path:
        """Returns the folder of a Delta table."""
        return Path(table_path(self.config.apply.target, self.source.workload.database, name))

    def any_table(self) -> str:
        """Returns one of the tables that every scenario has."""
        return self.rng.choice((self.source.workload.mirror, APPEND))

    def log(self, step: str) -> None:
        """Adds a step to the report, with the seconds since the scenario began."""
        self.steps.append(f"{time.monotonic() - self._began:6.1f} s  {step}")

    # ------------------------------------------------------------ steps

    def work(self, transactions: int | None = None) -> None:
        """Runs transactions of the application."""
        count = self.rng.randrange(3, 12) if transactions is None else transactions
        self.log(f"the application runs {count} transactions")
        self.source.workload.run(count)

    def capture(self) -> None:
        """Runs ``cdc capture --until-current``."""
        self.log("capture --until-current")
        Capture(self.config).run(until_current=True)

    def killed_capture(self) -> None:
        """Starts a process of ``cdc capture`` and kills it while it stores transactions of the application."""
        transactions = self.rng.randrange(1, 10)
        self.log(f"capture in a process of its own, killed while the application runs {transactions} transactions")
        before = self._stored()
        self.source.workload.touch()
        command = [sys.executable, "-m", "cdc", "--conf-dir", str(self.config.file.parent), "capture", self.config.name]
        with (self.folder / "capture.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
            deadline = time.monotonic() + _COMMAND_S
            while self._stored() <= before and process.poll() is None:
                if time.monotonic() > deadline:
                    process.kill()
                    raise AssertionError(f"capture stored nothing within {_COMMAND_S} s")
                time.sleep(0.02)
            self.source.workload.run(transactions)
            process.kill()
        code = process.wait()
        said = (self.folder / "capture.log").read_text(encoding="utf-8")[-2000:]
        assert code == -signal.SIGKILL, f"capture ended by itself with exit code {code}: {said}"

    def _stored(self) -> int:
        """Returns the bytes of the store's segments."""
        folder = segments_folder(self.store)
        return sum(file.stat().st_size for file in folder.glob("*.binlog")) if folder.is_dir() else 0

    def fetch(self, transactions: int | None = None, owner: str = OWNER) -> Lease | None:
        """Fetches a batch of at most this many transactions."""
        batch = self.config.batch.model_copy(update={"max_transactions": transactions})
        return pipeline.fetch(self.config.model_copy(update={"batch": batch}), owner, wait_s=0)

    def merge_and_ack(self, lease: Lease) -> None:
        """Merges and acks as ``cdc apply`` does; rolls back after an error."""
        try:
            results = pipeline.merge(self.config, lease)
        except CdcError:
            pipeline.finalize(self.config, lease, False)
            raise
        pipeline.finalize(self.config, lease, True, results)

    def apply_one(self, transactions: int | None = None) -> None:
        """Applies one batch, if there is one."""
        self.log("apply one batch" + ("" if transactions is None else f" of {transactions} transactions"))
        lease = self.fetch(transactions)
        if lease is not None:
            self.merge_and_ack(lease)

    def apply(self) -> None:
        """Runs ``cdc apply --until-empty``."""
        self.log("apply --until-empty")
        while (lease := self.fetch()) is not None:
            self.merge_and_ack(lease)

    def catch_up(self) -> None:
        """Captures and applies everything."""
        self.capture()
        self.apply()

    def filled_table(self) -> str:
        """Captures and applies a change of every table, and returns one of those that every scenario has. A table is
        made with the first batch."""
        self.source.workload.touch()
        self.catch_up()
        return self.any_table()

    def settle(self) -> None:
        """Changes every table, captures and applies that, and checks that the lake equals the source."""
        self.work()
        self.source.workload.touch()
        try:
            self.catch_up()
        except CdcError as error:
            raise AssertionError(f"refused without a fault: {type(error).__name__}: {error}") from error
        self.require_equal("without a fault")
        self._remembered = {table: self._rows(table) for table in self.source.workload.history.tables}

    def first_error(self, *actions: Callable[[], None]) -> CdcError | None:
        """Runs the actions up to the first error, and returns the error; default: :meth:`catch_up`."""
        for action in actions or (self.catch_up,):
            try:
                action()
            except CdcError as error:
                self.log(f"… refused: {type(error).__name__}: {error}")
                return error
        return None

    # ------------------------------------------------------------ the driver

    @contextmanager
    def before_statement(self, action: Callable[[str], None]) -> Iterator[None]:
        """Calls ``action`` with the table's name before each statement of a merge inside the block."""
        former, commit.before_statement = commit.before_statement, action
        try:
            yield
        finally:
            commit.before_statement = former

    def sql(self, statement: str) -> None:
        """Runs a statement of another user in Spark."""
        session.acquire(self.config.spark).spark.sql(statement).collect()

    # ------------------------------------------------------------ checks

    def differences(self) -> list[str]:
        """Returns the differences between lake and source."""
        workload, target = self.source.workload, self.config.apply.target
        faults: list[str] = []
        for table in workload.history.tables:
            if table in self.accepted:
                continue
            try:
                if table == APPEND:
                    faults += changelog_faults(
                        workload.server, target, workload.database, table, KEYS, workload.history.changes
                    )
                else:
                    faults += mirror_faults(workload.server, target, workload.database, table)
            except TableNotFoundError:
                faults.append(f"{table}: there is no Delta table")
        return faults

    def require_equal(self, when: str) -> None:
        """Raises AssertionError with the first differences between lake and source."""
        differences = self.differences()
        assert not differences, f"{when}: nothing was refused, and the lake differs from the source:\n" + "\n".join(
            differences[:12]
        )

    def changed_tables(self) -> list[str]:
        """Returns the tables whose rows in the lake have changed since the last :meth:`settle`."""
        return [table for table, rows in self._remembered.items() if self._rows(table) != rows]

    def _rows(self, table: str) -> list[Row]:
        arrow_table = DeltaTable(self.table(table)).to_pyarrow_table()
        return ordered(zip(*(column.to_pylist() for column in arrow_table.columns), strict=True))

    # ------------------------------------------------------------ files

    def copy(self, path: Path) -> Path:
        """Makes a backup of a folder."""
        to = self.folder / f"copy-{path.name}-{self.rng.getrandbits(32):08x}"
        shutil.copytree(path, to)
        return to

    def restore_copy(self, copy: Path, path: Path) -> None:
        """Replaces a folder by a backup."""
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(copy, path)

    def service(self) -> BatchService:
        return BatchService(self.config)
