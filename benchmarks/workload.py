"""The table of the benchmarks, rows for it, and the steps from a binlog to Delta in this process.

The table has eleven columns of mixed types. The servers are MariaDB, whose sequence engine makes rows without sending
them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.accounting import Tree
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.testing.servers import HOST, PASSWORD, USER, Server

COLUMNS = """id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, customer INT UNSIGNED NOT NULL,
  status ENUM('new','paid','sent') NOT NULL, total DECIMAL(12,2) NOT NULL, items SMALLINT NOT NULL, note VARCHAR(200),
  code CHAR(12), created DATETIME(3), changed TIMESTAMP(6) NULL, flag TINYINT, score DOUBLE"""
TRANSACTION_ROWS = 5000
PASSWORD_ENV = "BENCH_PASSWORD"
LARGE_SERVER = ("--innodb-buffer-pool-size=1G", "--max-binlog-size=1G", "--binlog-annotate-row-events=OFF")
"""Options of servers for millions of rows."""


def create_table(name: str = "orders") -> str:
    return f"CREATE TABLE bench.{name} ({COLUMNS}) ENGINE=InnoDB"


def values(number: str, text: int = 30, key: str = "NULL") -> str:
    """Returns the list of values of a row, from an SQL expression for its number."""
    return (
        f"{key}, {number} * 7, 1 + {number} % 3, {number} / 7, {number} % 100, REPEAT(CHAR(97 + {number} % 26), {text}),"
        f" CONCAT('c', {number}), '2026-01-02 03:04:05.678', '2026-01-02 03:04:05.678901', {number} % 2, {number} / 3"
    )


def inserts(name: str, rows: int, first: int = 1, each: int = TRANSACTION_ROWS) -> list[str]:
    """Returns statements that insert rows with ascending ids from ``first``, in transactions of ``each`` rows."""
    return [
        f"INSERT INTO bench.{name} SELECT {values('seq', key=f'{start} + seq')} FROM bench.seq_1_to_{min(each, first + rows - 1 - start)}"
        for start in range(first - 1, first - 1 + rows, each)
    ]


def configure(
    folder: Path,
    server: Server,
    cores: int,
    *,
    name: str = "bench",
    include: str = "bench\\..*",
    remote: str | None = None,
    more: str = "",
    tables: str = "",
) -> DestinationConfig:
    """Writes the configuration of a destination whose files are in ``folder``, and loads it. ``more`` and ``tables``:
    further keys of the sections ``apply`` and ``tables``, after a comma."""
    os.environ[PASSWORD_ENV] = PASSWORD
    (folder / "conf").mkdir(exist_ok=True, parents=True)
    file = folder / "conf" / f"{name}.yaml"
    spark = f"master: 'local[{cores}]'" + ("" if remote is None else f", remote: '{remote}'")
    file.write_text(
        f"source: {{url: 'mariadb://{USER}@{HOST}:{server.port}', password_env: {PASSWORD_ENV}, server_id: 4711,"
        " start: earliest}\n"
        f"tables: {{include: ['{include}']{tables}}}\n"
        f"store: {{path: store}}\nmeta: {{path: meta}}\napply: {{target: lake{more}}}\n"
        f"batch: {{max_bytes: 2147483648, max_wait_s: 0}}\nspark: {{{spark}}}\n"
    )
    return load(file)


@contextmanager
def destination(
    cores: int, *, options: Sequence[str] = (), more: str = "", tables: str = ""
) -> Iterator[tuple[Server, DestinationConfig, Tree]]:
    """Starts a server with the database ``bench`` and configures a destination for it. Yields both, and the tree of this
    process, whose CPU seconds are counted. ``options``: of the server. ``more`` and ``tables``: see :func:`configure`."""
    with (
        Server("mariadb10", options=options) as server,
        tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder,
        Tree(join=True) as tree,
    ):
        server.execute("CREATE DATABASE bench")
        yield server, configure(Path(folder), server, cores, more=more, tables=tables), tree


def capture(config: DestinationConfig) -> None:
    """Brings what the source has into the store."""
    Capture(config).run(until_current=True)


def apply(config: DestinationConfig) -> None:
    """Brings what the store has into Delta, in the warm session of this process. Its JVM compiles well, as it does in a
    process that has merged for a while, however small the first batches are."""
    from cdc.lake import pipeline
    from cdc.lake.runtime.session import acquire

    acquire(config.spark)
    while (lease := pipeline.fetch(config, "cli:bench", wait_s=0)) is not None:
        pipeline.finalize(config, lease, True, pipeline.merge(config, lease))


def count(config: DestinationConfig, name: str) -> int:
    """Returns the rows of a Delta table, counted by Spark."""
    from cdc.base.targets import table_path
    from cdc.lake.runtime.session import acquire

    spark = acquire(config.spark).spark
    return int(spark.read.format("delta").load(table_path(config.apply.target, "bench", name)).count())
