"""Capture compared with ``mariadb-binlog --read-from-remote-server --raw``, alternating, on the same binlogs.

Capture verifies every checksum, filters by table, frames transactions, indexes them and fsyncs. mariadb-binlog writes
the received bytes, and its file is fsynced once at the end. Neither requests annotate events. Each runs in its own
process. The start-up time (interpreter, imports, connection, the last transaction) is measured separately, and its
median is subtracted; the table also has the ratio with start-up. "All excluded" is the time for the same binlog if no
table of it is captured, relative to capturing it.

    python benchmarks/capture.py [--bytes 1100000000] [--pairs 5]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cdc.testing.servers import HOST, PASSWORD, USER, Server, client_tool

ROOT = Path(__file__).resolve().parent.parent

TABLE = """CREATE TABLE bench.orders (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, customer INT UNSIGNED NOT NULL, status ENUM('new','paid','sent') NOT NULL,
  total DECIMAL(12,2) NOT NULL, items SMALLINT NOT NULL, note VARCHAR(200), code CHAR(12), created DATETIME(3),
  changed TIMESTAMP(6) NULL, flag TINYINT, score DOUBLE) ENGINE=InnoDB"""

ROW = """SELECT NULL, seq * 7, 1 + seq % 3, seq / 7, seq % 100, REPEAT(CHAR(97 + seq % 26), {text}), CONCAT('c', seq),
  '2026-01-02 03:04:05.678', '2026-01-02 03:04:05.678901', seq % 2, seq / 3"""


def fill(server: Server, kind: str, size_bytes: int) -> None:
    """Writes at least ``size_bytes`` of binlog: transactions of 5,000 rows, or of one and two rows."""
    server.execute(
        "CREATE DATABASE bench",
        TABLE,
        "CREATE PROCEDURE bench.small(n INT) BEGIN DECLARE i INT DEFAULT 0; WHILE i < n DO "
        f"INSERT INTO bench.orders {ROW.format(text=60).replace('seq', 'i')}; "
        f"START TRANSACTION; INSERT INTO bench.orders {ROW.format(text=60).replace('seq', 'i')}; "
        "UPDATE bench.orders SET total = total + 1 WHERE id = LAST_INSERT_ID(); COMMIT; "
        "SET i = i + 2; END WHILE; END",
    )
    while binlog_bytes(server) < size_bytes:
        if kind == "large":
            server.execute(*[f"INSERT INTO bench.orders {ROW.format(text=100)} FROM bench.seq_1_to_5000"] * 40)
        else:
            server.execute("CALL bench.small(100000)")


def add_last(server: Server) -> tuple[str, int]:
    """Writes one more small transaction, and returns the file and offset at which it begins."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, pos = cursor.fetchone()[:2]  # type: ignore[index]
    server.execute("INSERT INTO bench.orders (customer, status, total, items) VALUES (1, 1, 1, 1)")
    return str(file), int(pos)


def binlog_bytes(server: Server) -> int:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        return sum(int(row[1]) for row in cursor.fetchall())


def run(command: list[str], **env: str) -> float:
    return measured(command, **env)[0]


def measured(command: list[str], **env: str) -> tuple[float, float]:
    """Runs a command. Returns its seconds, and the megabytes of memory that it used at most."""
    began = time.perf_counter()
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=nowhere, stderr=nowhere, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return time.perf_counter() - began, usage.ru_maxrss / 1024


class TowpathCapture:
    """``cdc capture --until-current`` into a new store."""

    def __init__(self, server: Server, folder: Path, last: tuple[str, int]) -> None:
        self.folder = folder
        self.peak_mb = 0.0
        """The memory of the last whole run."""
        conf = folder / "conf"
        conf.mkdir(parents=True)
        one = f"{{file: {last[0]}, pos: {last[1]}}}"
        starts = (("bench", "earliest", "bench"), ("last", one, "bench"), ("none", "earliest", "nothing"))
        for server_id, (name, start, included) in enumerate(starts, start=4711):
            (conf / f"{name}.yaml").write_text(
                f"source: {{url: 'mariadb://{USER}@{HOST}:{server.port}', password_env: BENCH_PASSWORD, server_id: {server_id},"
                f" start: {start}}}\n"
                f"tables: {{include: ['{included}\\..*']}}\n"
                f"store: {{path: {name}/store}}\nmeta: {{path: {name}/meta}}\napply: {{target: lake}}\n"
            )
        self.command = [sys.executable, "-m", "cdc", "--conf-dir", str(conf), "capture", "--until-current"]

    def excluded(self) -> float:
        """Returns the seconds of a whole run in which no table of the binlog is captured."""
        shutil.rmtree(self.folder / "none", ignore_errors=True)
        return run([*self.command, "none"], BENCH_PASSWORD=PASSWORD)

    def once(self) -> tuple[float, float]:
        """Returns the seconds of a whole run, and of the start-up."""
        for name in ("bench", "last"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        os.sync()
        whole, self.peak_mb = measured([*self.command, "bench"], BENCH_PASSWORD=PASSWORD)
        return whole, run([*self.command, "last"], BENCH_PASSWORD=PASSWORD)


class MariadbBinlog:
    """``mariadb-binlog --raw``, then one fsync of each file."""

    def __init__(self, server: Server, folder: Path, last: tuple[str, int]) -> None:
        self.folder = folder
        self.last = last
        self.tool = [
            *client_tool("mariadb10", "mariadb-binlog"),
            "--no-defaults", "--read-from-remote-server", "--raw", f"--host={HOST}", f"--port={server.port}",
            f"--user={USER}", f"--password={PASSWORD}", f"--result-file={folder}/raw-",
        ]  # fmt: skip
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            self.first = str(cursor.fetchall()[0][0])

    def once(self) -> tuple[float, float]:
        """Returns the seconds of a whole run, and of the start-up."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        os.sync()
        began = time.perf_counter()
        run([*self.tool, "--to-last-log", self.first])
        for path in self.folder.iterdir():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        whole = time.perf_counter() - began
        return whole, run([*self.tool, f"--start-position={self.last[1]}", self.last[0]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--bytes", type=int, default=1_100_000_000, help="minimal size of the binlog")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--kinds", default="large,small")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title="Capture into an fsynced store, against mariadb-binlog --raw and one fsync")
    for name in (
        "transactions",
        "binlog MB",
        "ours s (start-up)",
        "mariadb-binlog s (start-up)",
        "ours MB/s",
        "ratio with start",
        "ratio",
        "goal",
        "all excluded",
        "peak MB (≤ 150)",
    ):
        table.add_column(name, justify="right")
    for kind in options.kinds.split(","):
        server = Server("mariadb10", options=["--max-binlog-size=1G", "--binlog-annotate-row-events=OFF"])
        with server, tempfile.TemporaryDirectory(prefix="towpath-bench-", dir=os.environ.get("TMPDIR")) as folder:
            console.print(f"filling: {kind} transactions …")
            fill(server, kind, options.bytes)
            size = binlog_bytes(server)
            last = add_last(server)
            ours, theirs = (
                TowpathCapture(server, Path(folder) / "ours", last),
                MariadbBinlog(server, Path(folder) / "theirs", last),
            )
            ours.once()  # kernels compiled, caches warm
            pairs, excluded_s = [], []
            for number in range(options.pairs):
                mine, other = ours.once(), theirs.once()
                pairs.append((mine, other))
                excluded_s.append(ours.excluded())
                console.print(
                    f"pair {number + 1}: ours {mine[0]:.2f} ({mine[1]:.2f}), theirs {other[0]:.2f} ({other[1]:.2f})"
                )
            start_s = [statistics.median(pair[side][1] for pair in pairs) for side in (0, 1)]
            net = statistics.median(m[0] - start_s[0] for m, _ in pairs)
            ratio = statistics.median((o[0] - start_s[1]) / (m[0] - start_s[0]) for m, o in pairs)
            whole = statistics.median(o[0] / m[0] for m, o in pairs)
            table.add_row(
                kind,
                f"{size / 1e6:.0f}",
                *(f"{statistics.median(p[side][0] for p in pairs):.2f} ({start_s[side]:.2f})" for side in (0, 1)),
                f"{size / 1e6 / net:.0f}",
                f"{whole:.2f}",
                f"{ratio:.2f}",
                "0.9" if kind == "large" else "2.0",
                f"{(statistics.median(excluded_s) - start_s[0]) / net:.2f}",
                f"{ours.peak_mb:.0f}",
            )
    console.print(table)
    console.print(
        f"Medians of {options.pairs} alternating pairs; ratio: speed relative to mariadb-binlog without start-up; "
        f"{os.cpu_count()} CPUs."
    )


if __name__ == "__main__":
    main()
