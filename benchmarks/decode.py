"""Decoding against mysql-replication, on the same binlog and in the same run.

    python benchmarks/decode.py [--kind mariadb10] [--rows 1000000] [--url mysql://user:password@host:port]

A table of eleven columns of mixed types, filled in transactions of 5,000 rows (bulk), then updated row by row in
transactions of one (small). Ours decodes whole files, framing and the check of every checksum apart; mysql-replication
reads a sample of the stream, since it is slower by two orders of magnitude. All figures are of one core; the median of
several repeats counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent
from rich.console import Console
from rich.table import Table

from cdc.binlog.file import BinlogFile
from cdc.decode.events import Transactions
from cdc.decode.reader import decode_transactions
from cdc.testing.servers import HOST, PASSWORD, USER, Server

DB = "towpath_bench_decode"
CREATE = f"""CREATE TABLE {DB}.orders (id BIGINT PRIMARY KEY, customer INT NOT NULL,
  status ENUM('new','paid','sent','done') NOT NULL, amount DECIMAL(12,2) NOT NULL, quantity SMALLINT NOT NULL, note VARCHAR(100),
  reference CHAR(12), created DATETIME(3) NOT NULL, changed TIMESTAMP(6) NOT NULL, flag TINYINT NOT NULL, weight DOUBLE NOT NULL)"""
FILL = f"""INSERT INTO {DB}.orders SELECT %s + n, (n * 7919) %% 2147483647, 1 + n %% 4, n * 1.37, n %% 30000,
  IF(n %% 10 = 0, NULL, CONCAT('note é ', n * 104729)), CONCAT('R', LPAD(n, 8, '0')),
  '2024-01-01 00:00:00.123' + INTERVAL n SECOND, '2024-06-01 12:34:56.123456' + INTERVAL n SECOND, n %% 128, n * 0.731
  FROM {DB}.numbers ORDER BY n"""
BATCH = 5000


@dataclass(frozen=True)
class Binlog:
    """A file of the server, and the same file as the stream knows it."""

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
    """Fill the table in large transactions, update it in small ones; the two binlog files, fetched from the server."""
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
    """A binlog file through the replication protocol, as mysql-replication gets it."""
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
                    return path  # the end of this file
                if not artificial and data[5] != 27:
                    file.write(data[1:])
    finally:
        stream.close()


def ours(binlog: Binlog, repeats: int) -> tuple[float, float]:
    """Median rows per second and core of decoding; seconds of framing and checksums before."""
    BinlogFile.open(binlog.path)  # loads or compiles the kernels
    start = time.process_time()
    opened = BinlogFile.open(binlog.path)
    framing_s = time.process_time() - start
    transactions = Transactions(opened.path, opened.buf, opened.has_checksum, opened.entries)

    def once() -> int:
        return sum(b.num_rows for b in decode_transactions(transactions.between(0, None), table=f"{DB}.orders"))

    once()  # loads or compiles the kernels
    return _median(once, binlog.rows, repeats), framing_s


def theirs(settings: dict[str, object], binlog: Binlog, sample: int, repeats: int) -> float:
    """Median rows per second and core of mysql-replication, over a sample."""

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="mariadb10", help="server to start: mysql9, mariadb10, mariadb11")
    parser.add_argument("--url", help="use this server instead of starting one; it needs binlog_row_metadata=FULL")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=20_000, help="rows that mysql-replication decodes")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    rows = max(BATCH, args.rows // BATCH * BATCH)
    console = Console(width=None if sys.stdout.isatty() else 160)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="towpath-bench-")))
        if args.url:
            settings = _settings(args.url)
        else:
            server = stack.enter_context(Server(args.kind))
            settings = {"host": HOST, "port": server.port, "user": USER, "password": PASSWORD}
        console.print(f"writing {rows:,} rows in transactions of {BATCH:,}, then updating some one by one …")
        table = Table("binlog", "size", "rows", "framing", "ours, rows/s", "mysql-replication, rows/s", "ratio", "goal")
        for label, goal, binlog in zip(
            ("bulk", "small"), (100, 100), make_binlogs(settings, rows, folder), strict=True
        ):
            rate, framing_s = ours(binlog, args.repeats)
            sample = min(args.sample if label == "bulk" else args.sample // 4, binlog.rows)
            other = theirs(settings, binlog, sample, max(1, args.repeats // 2))
            size = binlog.path.stat().st_size / 1e6
            table.add_row(
                label, f"{size:.0f} MB", f"{binlog.rows:,}", f"{framing_s:.2f} s", f"{rate:,.0f}",
                f"{other:,.0f} (sample of {sample:,})", f"{rate / other:.0f}", f"≥ {goal}",
            )  # fmt: skip
        console.print(table)
        with pymysql.connect(**settings) as connection, connection.cursor() as cursor:  # type: ignore[call-overload]
            cursor.execute(f"DROP DATABASE {DB}")


if __name__ == "__main__":
    main()
