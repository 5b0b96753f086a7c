"""Memory of capture over a long stream: 10 GB, among them a transaction of a gigabyte, a compressed one, and half a
million of one row each.

A MySQL 9 writes the stream, and ``cdc capture --until-current`` reads it from the beginning, in a process of its own. Its
resident memory (RSS) is looked at twenty times a second, and the kernel says the most that it ever had. The exit status
is 1 if that is above the limit, or if the store has other transactions than the source wrote. A gigabyte here is 10^9 bytes of
the store. Server and store together need 2.2 times the stream on the disk.

    python -m benchmarks.long_stream [--gigabytes 10] [--limit-mb 150]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.accounting import ROOT, compile_sources
from cdc.store.formats.index import read_entries
from cdc.testing.servers import HOST, PASSWORD, USER, Server

_ROW_BYTES = 1984
_ROWS = 8_000
"""Rows of an ordinary transaction, of 16 MB."""
_SMALL = 500_000
"""Transactions of one row: their entries in the index have 64 MB."""
_SMALL_BYTES = 100
_EVERY_S = 0.05
_OPTIONS = ("--max-binlog-size=1G", "--cte-max-recursion-depth=4294967295", "--max-binlog-cache-size=8G")


@dataclass(frozen=True)
class Part:
    """A part of the stream: transactions of one kind."""

    name: str
    transactions: int
    rows: int
    """The rows of each transaction."""
    compressed: bool = False


def parts_of(gigabytes: float) -> list[Part]:
    """The parts of a stream of this size: ordinary transactions, also compressed ones, and two large ones."""
    rows = int(gigabytes * 1e9 / _ROW_BYTES)
    large = rows // 10
    return [
        Part("transactions of 16 MB", max(1, (rows - 4 * large) // _ROWS), _ROWS),
        Part("one transaction", 1, large),
        Part("compressed transactions of 16 MB", max(1, 2 * large // _ROWS), _ROWS, compressed=True),
        Part("one compressed transaction", 1, large, compressed=True),
        Part("transactions of one row", _SMALL, 1),
    ]


def _bytes_of(part: Part) -> int:
    return _SMALL_BYTES if part.rows == 1 else _ROW_BYTES


def write(server: Server, part: Part) -> None:
    """Writes a part. The rows of uncompressed ones go into a table that keeps none, and those of compressed ones, which
    need a transactional table, are deleted again."""
    table = "stream.kept" if part.compressed else "stream.gone"
    numbers = f"WITH RECURSIVE s AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM s WHERE n < {part.rows})"
    insert = f"INSERT INTO {table} (pad) {numbers} SELECT REPEAT(SHA2(RAND(), 256), {_ROW_BYTES // 64}) FROM s"
    switch = "ON" if part.compressed else "OFF"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("USE stream")  # a common table expression needs a database
        cursor.execute(f"SET SESSION binlog_transaction_compression = {switch}")
        if part.rows == 1:
            cursor.execute(f"CALL stream.small({part.transactions})")
            return
        for _ in range(part.transactions):
            cursor.execute(insert)
            if part.compressed:
                cursor.execute(f"TRUNCATE TABLE {table}")


@dataclass(frozen=True)
class Look:
    """A look at the process while it captures."""

    seconds: float
    stored_bytes: int
    rss_mb: float
    peak_mb: float
    """The most that it ever had, by the kernel. (The kernel's figure for an ended process is of no use: it counts what
    its parent had.)"""


@dataclass(frozen=True)
class Result:
    looks: list[Look]
    seconds: float
    cpu_s: float

    @property
    def peak_mb(self) -> float:
        return max(look.peak_mb for look in self.looks)


def capture(server: Server, folder: Path) -> Result:
    """Captures all that the server has."""
    (folder / "conf").mkdir()
    (folder / "conf" / "bench.yaml").write_text(
        f"source: {{url: 'mysql://{USER}@{HOST}:{server.port}', password_env: BENCH_PASSWORD, server_id: 4711,"
        " start: earliest}\n"
        "tables: {include: ['stream\\..*']}\nstore: {path: store}\nmeta: {path: meta}\napply: {target: lake}\n"
    )
    command = [sys.executable, "-m", "cdc", "--conf-dir", str(folder / "conf"), "capture", "--until-current", "bench"]
    began = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "BENCH_PASSWORD": PASSWORD}, stdout=log, stderr=log
        )
        looks = list(_looks(process.pid, folder / "store" / "segments", began))
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        last = (folder / "log").read_text(errors="replace").strip().splitlines()[-8:]
        raise RuntimeError(f"capture ended with code {process.returncode}: {' / '.join(last)}")
    seconds = time.monotonic() - began
    return Result(looks, seconds, usage.ru_utime + usage.ru_stime)


def _looks(pid: int, segments: Path, began: float) -> Iterator[Look]:
    while True:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            return
        memory = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS:", "VmHWM:"))}
        if not memory:  # it has ended, and waits for its parent
            return
        stored = sum(file.stat().st_size for file in segments.glob("*.binlog")) if segments.is_dir() else 0
        yield Look(time.monotonic() - began, stored, int(memory["VmRSS"]) / 1024, int(memory["VmHWM"]) / 1024)
        time.sleep(_EVERY_S)


def stored(store: Path) -> tuple[int, int]:
    """Returns the transactions with rows in a store, and its bytes."""
    segments = sorted((store / "segments").glob("*.binlog"))
    transactions = sum(int((read_entries(segment)["row_events"] > 0).sum()) for segment in segments)
    return transactions, sum(segment.stat().st_size for segment in segments)


def report(console: Console, result: Result, stored_bytes: int) -> None:
    """Prints what a run has used, and its memory gigabyte by gigabyte."""
    table = Table(title="Resident memory of capture")
    for name in ("GB stored", "MB, most", "MB, at the end", "s"):
        table.add_column(name, justify="right")
    for gigabyte in range(int(stored_bytes / 1e9) + 1):
        looks = [look for look in result.looks if look.stored_bytes // 1_000_000_000 == gigabyte]
        if looks:
            most = max(look.rss_mb for look in looks)
            table.add_row(f"{gigabyte + 1}", f"{most:.0f}", f"{looks[-1].rss_mb:.0f}", f"{looks[-1].seconds:.1f}")
    console.print(table)
    rate = stored_bytes / 1e6 / result.seconds
    console.print(
        f"{stored_bytes / 1e9:.2f} GB in {result.seconds:.1f} s ({rate:.0f} MB/s), {result.cpu_s:.1f} CPU s "
        f"({result.cpu_s / stored_bytes * 1e9:.2f} per GB), at most {result.peak_mb:.0f} MB"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--limit-mb", type=float, default=150.0)
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    parts = parts_of(options.gigabytes)
    compile_sources()
    with (
        Server("mysql9", options=_OPTIONS) as server,
        tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder,
    ):
        columns = "(id BIGINT AUTO_INCREMENT PRIMARY KEY, pad VARCHAR(4000) NOT NULL)"
        server.execute(
            "CREATE DATABASE stream",
            f"CREATE TABLE stream.gone {columns} ENGINE=BLACKHOLE",
            f"CREATE TABLE stream.kept {columns}",
            "CREATE PROCEDURE stream.small(n INT) BEGIN DECLARE i INT DEFAULT 0; WHILE i < n DO "
            f"INSERT INTO stream.gone (pad) VALUES (REPEAT('x', {_SMALL_BYTES})); SET i = i + 1; END WHILE; END",
        )
        for part in parts:
            began = time.monotonic()
            write(server, part)
            console.print(f"{part.name}: {part.transactions} of {part.rows:,} rows, {time.monotonic() - began:.0f} s")
        result = capture(server, Path(folder))
        transactions, stored_bytes = stored(Path(folder) / "store")
    report(console, result, stored_bytes)
    faults = []
    if transactions != (expected := sum(part.transactions for part in parts)):
        faults.append(f"the store has {transactions} transactions with rows, and the source wrote {expected}")
    if stored_bytes < (least := sum(part.transactions * part.rows * _bytes_of(part) for part in parts)):
        faults.append(f"the store has {stored_bytes:,} bytes, and the rows alone have {least:,}")
    if result.peak_mb >= options.limit_mb:
        faults.append(f"capture needed {result.peak_mb:.0f} MB, and the limit is {options.limit_mb:g}")
    for fault in faults:
        console.print(f"[red]{fault}[/red]")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
