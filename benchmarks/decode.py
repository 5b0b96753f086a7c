"""Decoding compared with mysql-replication, on the same binlog and in the same run; then tables with special workloads.

    python -m benchmarks.decode [--kind mysql9] [--rows 1000000] [--url mysql://user:password@host:port]

A table of eleven columns of mixed types, filled in transactions of 5,000 rows (bulk), then updated row by row in
transactions of one row (small). Towpath decodes whole files and verifies every checksum; framing is measured
separately. mysql-replication decodes a sample of the stream, because it is slower by two orders of magnitude. All
numbers are for one core, and are medians of several repeats. The first pass frames and decodes a file that was never
read, and is given as a multiple of decoding it again.

The second table has the cost of a wide table, texts, JSON and updates: where the time goes (finding events and verifying
checksums, locating rows, writing values, conversions, the rest), and the peak memory of a separate process beyond the
mapped file, as a multiple of the row events of a record batch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent
from rich.console import Console
from rich.table import Table

from benchmarks.decode_tables import BATCH, DB, HEAVY, Heavy
from cdc.binlog.file import BinlogFile
from cdc.decode import DecodeOptions, read, reader, scan
from cdc.decode.reader import TARGET_BYTES, decode_transactions
from cdc.decode.transactions import Transactions
from cdc.testing.servers import HOST, PASSWORD, USER, Server

ROOT = Path(__file__).parent.parent
CREATE = f"""CREATE TABLE {DB}.orders (id BIGINT PRIMARY KEY, customer INT NOT NULL,
  status ENUM('new','paid','sent','done') NOT NULL, amount DECIMAL(12,2) NOT NULL, quantity SMALLINT NOT NULL, note VARCHAR(100),
  reference CHAR(12), created DATETIME(3) NOT NULL, changed TIMESTAMP(6) NOT NULL, flag TINYINT NOT NULL, weight DOUBLE NOT NULL)"""
FILL = f"""INSERT INTO {DB}.orders SELECT %s + n, (n * 7919) %% 2147483647, 1 + n %% 4, n * 1.37, n %% 30000,
  IF(n %% 10 = 0, NULL, CONCAT('note é ', n * 104729)), CONCAT('R', LPAD(n, 8, '0')),
  '2024-01-01 00:00:00.123' + INTERVAL n SECOND, '2024-06-01 12:34:56.123456' + INTERVAL n SECOND, n %% 128, n * 0.731
  FROM {DB}.numbers ORDER BY n"""


@dataclass(frozen=True)
class Binlog:
    """A binlog file of the server, and its local copy."""

    name: str
    path: Path
    rows: int


def _settings(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port or 3306,
        "user": parts.username,
        "password": parts.password or "",
    }


def _new_file(connection: pymysql.Connection[pymysql.cursors.Cursor]) -> str:
    with connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        return str(cursor.fetchall()[-1][0])


def make_binlogs(settings: dict[str, object], rows: int, folder: Path) -> tuple[Binlog, Binlog]:
    """Fills the table in large transactions and updates it in small ones. Returns copies of the two binlog files."""
    with pymysql.connect(**settings, autocommit=True) as connection, connection.cursor() as cursor:  # type: ignore[call-overload]
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"DROP DATABASE IF EXISTS {DB}")
        cursor.execute(f"CREATE DATABASE {DB} CHARACTER SET utf8mb4")
        cursor.execute(CREATE)
        cursor.execute(f"CREATE TABLE {DB}.numbers (n INT PRIMARY KEY)")
        cursor.executemany(f"INSERT INTO {DB}.numbers VALUES (%s)", [(n,) for n in range(BATCH)])
        bulk = _new_file(connection)
        for start in range(0, rows, BATCH):
            cursor.execute(FILL, (start,))
        small = _new_file(connection)
        updates = min(rows, 20_000)
        for n in range(updates):
            cursor.execute(f"UPDATE {DB}.orders SET quantity = quantity + 1 WHERE id = {n}")
        _new_file(connection)
    return (
        Binlog(bulk, _fetch(settings, bulk, folder), rows),
        Binlog(small, _fetch(settings, small, folder), updates),
    )


def _fetch(settings: dict[str, object], name: str, folder: Path) -> Path:
    """Copies a binlog file through the replication protocol."""
    stream = BinLogStreamReader(
        connection_settings=settings, server_id=91_001, log_file=name, log_pos=4, blocking=False, resume_stream=True
    )
    path = folder / name
    try:
        stream._BinLogStreamReader__connect_to_stream()
        with path.open("wb") as file:
            file.write(b"\xfebin")
            while True:
                packet = stream._stream_connection._read_packet()
                data = packet._data
                if data[0] == 254 and len(data) < 9:
                    return path
                artificial = data[5] == 4 and int.from_bytes(data[14:18], "little") == 0
                if data[5] == 4 and not artificial:
                    return path  # the file ends
                if not artificial and data[5] != 27:
                    file.write(data[1:])
    finally:
        stream.close()


def towpath_rate(binlog: Binlog, repeats: int) -> tuple[float, float]:
    """Returns the median rows per second and core, and the seconds of framing and checksums before decoding."""
    BinlogFile.open(binlog.path)  # loads or compiles the kernels
    start = time.process_time()
    opened = BinlogFile.open(binlog.path)
    framing_s = time.process_time() - start
    transactions = Transactions(opened.path, opened.buf, opened.has_checksum, opened.entries)

    def once() -> int:
        return sum(b.num_rows for b in decode_transactions(transactions.between(0, None), table=f"{DB}.orders"))

    once()  # loads or compiles the kernels
    return _median(once, binlog.rows, repeats), framing_s


def first_pass_ratio(binlog: Binlog, repeats: int) -> float:
    """Returns the least time of framing and decoding a file that was never read, relative to decoding it again."""
    first_s, again_s = [], []
    for _ in range(repeats):
        start = time.process_time()
        for _ in read(binlog.path, table=f"{DB}.orders"):
            pass
        first_s.append(time.process_time() - start)
        opened = BinlogFile.open(binlog.path)
        transactions = Transactions(opened.path, opened.buf, opened.has_checksum, opened.entries).between(0, None)
        start = time.process_time()
        for _ in decode_transactions(transactions, table=f"{DB}.orders"):
            pass
        again_s.append(time.process_time() - start)
    return min(first_s) / min(again_s)


def mysql_replication_rate(settings: dict[str, object], binlog: Binlog, sample: int, repeats: int) -> float:
    """Returns the median rows per second and core of mysql-replication, for a sample."""

    def once() -> int:
        stream = BinLogStreamReader(
            connection_settings=settings,
            server_id=91_002,
            log_file=binlog.name,
            log_pos=4,
            resume_stream=True,
            blocking=False,
            only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        )
        rows = 0
        try:
            for event in stream:
                rows += len(event.rows)
                if rows >= sample:
                    break
        finally:
            stream.close()
        return rows

    return _median(once, None, repeats)


def _median(once: Callable[[], int], expected: int | None, repeats: int) -> float:
    rates = []
    for _ in range(repeats):
        start = time.process_time()
        rows = once()
        rates.append(rows / (time.process_time() - start))
        if expected is not None and rows != expected:
            raise SystemExit(f"decoded {rows} rows instead of {expected}")
    return statistics.median(rates)


def heavy_binlog(server: Server, settings: dict[str, object], heavy: Heavy, folder: Path) -> tuple[Path, int]:
    """Fills (or changes) the table. Returns a copy of its binlog file, and the number of rows."""
    with pymysql.connect(**settings, autocommit=True) as connection, connection.cursor() as cursor:  # type: ignore[call-overload]
        cursor.execute(f"CREATE TABLE {DB}.{heavy.name} {heavy.create}")
        name = _new_file(connection)
        for start in range(0, heavy.rows, BATCH):
            cursor.execute(f"INSERT INTO {DB}.{heavy.name} {heavy.fill} FROM {DB}.numbers ORDER BY n", (start,))
        if heavy.change is not None:
            name = _new_file(connection)
            cursor.execute(f"UPDATE {DB}.{heavy.name} SET {heavy.change}")
        _new_file(connection)
    return _fetch(settings, name, folder), heavy.rows


@dataclass
class Shares:
    """The seconds of one run, by step."""

    scan: float = 0.0
    locate: float = 0.0
    fill: float = 0.0
    convert: float = 0.0
    all: float = 0.0


def measured(path: Path, table: str, rows: int, repeats: int) -> tuple[Shares, float]:
    """Returns the shares of the median run, and its rows per second and core."""
    opened = BinlogFile.open(path)
    transactions = Transactions(opened.path, opened.buf, opened.has_checksum, opened.entries).between(0, None)
    runs = []
    for _ in range(repeats + 1):  # the first loads or compiles the kernels
        shares = Shares()
        with _stopwatches(shares):
            start = time.process_time()
            decoded = sum(
                b.num_rows for b in decode_transactions(transactions, table=table, options=DecodeOptions(images="both"))
            )
            shares.all = time.process_time() - start
        if decoded != rows:
            raise SystemExit(f"decoded {decoded} rows of {table} instead of {rows}")
        runs.append(shares)
    middle = sorted(runs[1:], key=lambda run: run.all)[repeats // 2]
    return middle, rows / middle.all


@contextmanager
def _stopwatches(shares: Shares) -> Iterator[None]:
    """Patches the decoder's steps, so that they add their time to the shares."""
    places = [(scan, "scan_events", "scan"), (reader, "locate_rows", "locate"), (reader, "fill_rows", "fill"),
              (reader.Decoder, "_converted", "convert"), (reader, "sound_utf8", "convert")]  # fmt: skip
    before = [getattr(owner, name) for owner, name, _ in places]

    def timed(function: Callable[..., Any], share: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                setattr(shares, share, getattr(shares, share) + time.process_time() - start)

        return call

    for (owner, name, share), function in zip(places, before, strict=True):
        setattr(owner, name, timed(function, share))
    try:
        yield
    finally:
        for (owner, name, _), function in zip(places, before, strict=True):
            setattr(owner, name, function)


_PEAK = """
import sys, threading, time
from cdc.decode import DecodeOptions, read
def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024
path, table = sys.argv[1:]
for batch in read(path, table=table, options=DecodeOptions(images="both")):
    break  # load kernels, libraries and the index of transactions before the measurement
del batch
peak = before = anonymous()
done = False
def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.002)
watcher = threading.Thread(target=watch)
watcher.start()
for batch in read(path, table=table, options=DecodeOptions(images="both")):
    pass
done = True
watcher.join()
print(peak - before)
"""


def peak_multiple(path: Path, table: str) -> float:
    """Returns the memory that decoding takes at its peak, as a multiple of a record batch's row events."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path), table], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return int(done.stdout) / min(TARGET_BYTES, path.stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="mysql9", help="server to start: mysql9, mariadb10, mariadb11")
    parser.add_argument("--url", help="use this server instead of starting one; it needs binlog_row_metadata=FULL")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=20_000, help="rows that mysql-replication decodes")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="towpath-bench-")))
        server = None
        if args.url:
            settings = _settings(args.url)
        else:
            server = stack.enter_context(Server(args.kind))
            settings = {"host": HOST, "port": server.port, "user": USER, "password": PASSWORD}
        rows = max(BATCH, args.rows // BATCH * BATCH)
        console.print(_against_mysql_replication(console, settings, rows, args.sample, args.repeats, folder))
        if server is not None:
            console.print(_heavy_tables(console, server, settings, args.repeats, folder))
        with pymysql.connect(**settings) as connection, connection.cursor() as cursor:  # type: ignore[call-overload]
            cursor.execute(f"DROP DATABASE {DB}")


def _against_mysql_replication(
    console: Console, settings: dict[str, object], rows: int, most: int, repeats: int, folder: Path
) -> Table:
    console.print(f"writing {rows:,} rows in transactions of {BATCH:,}, then updating some one by one …")
    table = Table(
        "binlog",
        "size",
        "rows",
        "framing",
        "first pass (goal ≤ 1.3)",
        "ours, rows/s",
        "mysql-replication, rows/s",
        "ratio",
        "goal",
    )
    binlogs = make_binlogs(settings, rows, folder)
    for label, goal, binlog in zip(("bulk", "small"), (100, 200), binlogs, strict=True):
        rate, framing_s = towpath_rate(binlog, repeats)
        sample = min(most if label == "bulk" else most // 4, binlog.rows)
        other = mysql_replication_rate(settings, binlog, sample, max(1, repeats // 2))
        size = binlog.path.stat().st_size / 1e6
        table.add_row(
            label, f"{size:.0f} MB", f"{binlog.rows:,}", f"{framing_s:.2f} s",
            f"{first_pass_ratio(binlog, repeats):.2f}", f"{rate:,.0f}",
            f"{other:,.0f} (sample of {sample:,})", f"{rate / other:.0f}", f"≥ {goal}",
        )  # fmt: skip
    return table


def _heavy_tables(console: Console, server: Server, settings: dict[str, object], repeats: int, folder: Path) -> Table:
    table = Table("table", "what", "rows", "size", "rows/s", "MB/s", "finding", "measuring", "writing", "converting", "rest",
                  "memory / batch")  # fmt: skip
    for heavy in HEAVY:
        if not heavy.server(server):
            continue
        console.print(f"writing {heavy.rows:,} rows of {heavy.what} …")
        path, rows = heavy_binlog(server, settings, heavy, folder)
        name = f"{DB}.{heavy.name}"
        shares, rate = measured(path, name, rows, repeats)
        size = path.stat().st_size / 1e6
        steps = (shares.scan, shares.locate, shares.fill, shares.convert)
        table.add_row(
            heavy.name, heavy.what, f"{rows:,}", f"{size:.0f} MB", f"{rate:,.0f}", f"{size / shares.all:,.0f}",
            *(f"{step / shares.all:.0%}" for step in (*steps, shares.all - sum(steps))),
            f"{peak_multiple(path, name):.1f}",
        )  # fmt: skip
        path.unlink()
    return table


if __name__ == "__main__":
    main()
