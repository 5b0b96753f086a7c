"""The destinations: their databases, configurations, captures and Delta tables.

Spark creates the tables of the first destination. Those of the others are copies of one of them, with an id and an owner
of their own, and each meta gets the records that an ack would have written: 10,000 tables that Spark creates would take
most of an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.accounting import ROOT
from cdc.base.targets import DESTINATION_PROPERTY, LOG_FOLDER, SINCE_PROPERTY, split_table, table_path
from cdc.capture import Capture
from cdc.client import open_meta
from cdc.config import DestinationConfig, load
from cdc.lake import pipeline
from cdc.lake.runtime.session import discard
from cdc.meta.state import TableRecord
from cdc.store.formats.state import read_beginning, read_capture_state
from cdc.testing.servers import HOST, PASSWORD, USER, Server

PASSWORD_ENV = "BENCH_PASSWORD"
CDC = (sys.executable, "-m", "cdc")
WHOLE = "whole"
"""The destination with the tables of all others."""
OWNER = "cli:bench"
_AT_ONCE = 6
"""Captures that start at the same time."""
_COLUMNS = "id INT AUTO_INCREMENT PRIMARY KEY, customer INT NOT NULL, note VARCHAR(50), changed TIMESTAMP(3) NULL"
INSERT = "INSERT INTO {} (customer, note, changed) VALUES (7, 'as many words as a note may have', NOW(3))"
SERVER = ("--max-connections=500", "--table-definition-cache=8000", "--open-files-limit=60000")

_CONFIGURATION = """\
source: {{url: 'mysql://{user}@{host}:{port}', password_env: {env}, server_id: {id}, start: {{file: {file}, pos: 4}}}}
tables: {{include: ['{include}']}}
store: {{path: data/{name}/store}}
meta: {{path: data/{name}/meta}}
apply: {{target: {target}, small_batches: {{engine: deltalake, max_rows: 100000}}}}
batch: {{max_wait_s: 0}}
spark: {{master: 'local[2]', conf: {{spark.driver.memory: 1g}}}}
airflow: {{start: data, start_pause: 1s, apply_every: 1d, snapshot_every: 1d, capture: external, capture_for: 1h, retries: 0}}
metrics: {{unhealthy_after: 60s}}
"""


@dataclass
class Destinations:
    """All destinations below one folder."""

    folder: Path
    server: Server
    count: int
    tables: int
    captures: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def conf(self) -> Path:
        """The folder of the configurations that Airflow reads."""
        return self.folder / "conf"

    @property
    def names(self) -> list[str]:
        return [f"d{number:03d}" for number in range(self.count)]

    def table_names(self, number: int) -> list[str]:
        """Returns the tables of a destination."""
        return [f"s{number:03d}.t{table:02d}" for table in range(self.tables)]

    def config(self, name: str) -> DestinationConfig:
        return load(self.file(name))

    def file(self, name: str) -> Path:
        """The configuration file. That of :data:`WHOLE` lies beside the folder that Airflow reads."""
        return (self.folder / "more" if name == WHOLE else self.conf) / f"{name}.yaml"

    def prepare(self) -> None:
        """Makes databases and tables at the source, and the configurations, which begin behind them."""
        os.environ[PASSWORD_ENV] = PASSWORD

        def create(number: int) -> None:
            tables = (f"CREATE TABLE {name} ({_COLUMNS})" for name in self.table_names(number))
            self.server.execute(f"CREATE DATABASE s{number:03d}", *tables)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(create, range(self.count)))
        self.server.execute("FLUSH BINARY LOGS")
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            newest = str(cursor.fetchall()[-1][0])
        for number, name in enumerate([*self.names, WHOLE]):
            file = self.file(name)
            file.parent.mkdir(exist_ok=True)
            include = r"s\d+\..*" if name == WHOLE else rf"s{number:03d}\..*"
            text = _CONFIGURATION.format(
                user=USER, host=HOST, port=self.server.port, env=PASSWORD_ENV, id=5000 + number, file=newest,
                include=include, name=name, target=f"lake/{name}",
            )  # fmt: skip
            file.write_text(text, encoding="utf-8")

    # --- captures

    def warm_up(self) -> None:
        """Captures a row in this process, so that the kernels are compiled before captures are measured."""
        self.server.execute(INSERT.format(self.table_names(0)[0]))
        Capture(self.config(WHOLE)).run(until_current=True)

    def start_captures(self) -> float:
        """Starts a capture for each destination, and returns the seconds until the last one reads the source."""
        began = time.monotonic()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self.captures = list(pool.map(self._start_capture, self.names))
        return time.monotonic() - began

    def _start_capture(self, name: str) -> subprocess.Popen[bytes]:
        log, store = self.folder / f"{name}.log", self.config(name).store.path
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*CDC, "--conf-dir", str(self.conf), "capture", name], stdout=output, stderr=output, cwd=ROOT
            )
        deadline = time.monotonic() + 180
        while True:
            state = read_capture_state(store)
            if state is not None and state.running and state.connected:
                return process
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the capture of {name} does not read the source: {log.read_text()[-1000:]}")
            time.sleep(0.1)

    def stop_captures(self) -> None:
        for process in self.captures:
            process.terminate()
        for process in self.captures:
            process.wait()

    # --- tables

    def make_tables(self) -> float:
        """Makes all Delta tables, and applies one transaction in each destination. Returns the seconds in which Spark
        has created those of the first one. The captures run."""
        self.server.execute(*(INSERT.format(self.table_names(number)[0]) for number in range(self.count)))
        configs = [self.config(name) for name in self.names]
        for config in configs:
            _wait_for_transaction(config)
        seconds = merge_all(configs[0])
        discard()  # its memory is needed
        template = Template.of(configs[0], self.table_names(0)[1])
        for number, config in enumerate(configs[1:], 1):
            template.copy(config, self.table_names(number))
            merge_all(config)
        whole = self.config(WHOLE)
        Capture(whole).run(until_current=True)
        template.copy(whole, [table for number in range(self.count) for table in self.table_names(number)])
        merge_all(whole)
        return seconds


def _wait_for_transaction(config: DestinationConfig, limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while pipeline.stored_seq(config) == 0:
        if time.monotonic() > deadline:
            raise RuntimeError(f"no transaction in the store of {config.name} within {limit_s} s")
        time.sleep(0.05)


@dataclass(frozen=True)
class Template:
    """The log of a Delta table that is empty, as Spark has created it."""

    text: str

    @classmethod
    def of(cls, config: DestinationConfig, table: str) -> Template:
        log = Path(table_path(config.apply.target, *split_table(table))) / LOG_FOLDER
        (commit,) = log.glob("*.json")
        return cls(commit.read_text(encoding="utf-8"))

    def made_for(self, config: DestinationConfig) -> tuple[str, str]:
        """Returns the log of a table that is new in another destination, and the table's id."""
        begins = read_beginning(config.store.path)
        assert begins is not None
        properties = {DESTINATION_PROPERTY: config.name, SINCE_PROPERTY: str(begins.seq)}
        identity, lines = str(uuid.uuid4()), []
        for line in self.text.splitlines():
            action = json.loads(line)
            if "metaData" in action:
                action["metaData"]["id"] = identity
                action["metaData"]["configuration"] |= properties
            lines.append(json.dumps(action))
        return "\n".join(lines) + "\n", identity

    def copy(self, config: DestinationConfig, tables: Iterable[str]) -> None:
        """Makes tables on this disk, and records them in the meta."""
        records = {}
        for table in tables:
            log = Path(table_path(config.apply.target, *split_table(table))) / LOG_FOLDER
            text, identity = self.made_for(config)
            log.mkdir(parents=True)
            (log / f"{0:020d}.json").write_text(text, encoding="utf-8")
            records[table] = identity
        record(config, records)


def record(config: DestinationConfig, ids: dict[str, str]) -> None:
    """Records tables that are there, and empty, as an ack does. Takes the subscriber's first batch for it, and gives it
    back."""
    lease = pipeline.fetch(config, OWNER, wait_s=0)
    assert lease is not None, "the store has a transaction"
    with open_meta(config).change() as state:
        records = state.subscription("apply").tables
        records |= {table: TableRecord(0, 0, 0, identity).text for table, identity in ids.items()}
    pipeline.finalize(config, lease, False)


def merge_all(config: DestinationConfig) -> float:
    """Merges what the store has, and returns the seconds of the merges."""
    seconds = 0.0
    while (lease := pipeline.fetch(config, OWNER, wait_s=0)) is not None:
        began = time.monotonic()
        results = pipeline.merge(config, lease)
        seconds += time.monotonic() - began
        pipeline.finalize(config, lease, True, results)
    return seconds
