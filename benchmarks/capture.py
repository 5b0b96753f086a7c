"""Capture compared with ``mariadb-binlog --read-from-remote-server --raw``, alternating, on the same binlogs.

Capture verifies every checksum, filters by table, frames transactions, indexes them and fsyncs. mariadb-binlog writes
the received bytes, and its file is fsynced once at the end. Neither requests annotate events. Each runs in its own
process. The start-up time (interpreter, imports, connection, the last transaction) is measured separately, and its
median is subtracted; the table also has the ratio with start-up. "All excluded" is the time for the same binlog if no
table of it is captured, relative to capturing it.

    python -m benchmarks.capture [--bytes 1100000000] [--pairs 5]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.accounting import Run, run
from benchmarks.lines import Measurement, Options
from benchmarks.peers import connector_java
from benchmarks.workload import LARGE_SERVER, create_table, inserts, values
from cdc.testing.servers import HOST, PASSWORD, USER, Server, client_tool

SMALL_STEP = 3
"""Row changes of a step of the small transactions: one of one row, and one of two."""


def prepare(server: Server) -> None:
    """Makes the table, and a procedure for small transactions."""
    server.execute(
        "CREATE DATABASE bench",
        create_table(),
        "CREATE PROCEDURE bench.small(n INT) BEGIN DECLARE i INT DEFAULT 0; WHILE i < n DO "
        f"INSERT INTO bench.orders SELECT {values('i', 60)}; "
        f"START TRANSACTION; INSERT INTO bench.orders SELECT {values('i', 60)}; "
        "UPDATE bench.orders SET total = total + 1 WHERE id = LAST_INSERT_ID(); COMMIT; "
        "SET i = i + 1; END WHILE; END",
    )


def fill(server: Server, kind: str, size_bytes: int) -> None:
    """Writes at least ``size_bytes`` of binlog: transactions of 5,000 rows, or of one and two rows."""
    prepare(server)
    first = 1
    while binlog_bytes(server) < size_bytes:
        if kind == "large":
            server.execute(*inserts("orders", 200_000, first))
            first += 200_000
        else:
            server.execute("CALL bench.small(50000)")


@contextmanager
def filled(kind: str, rows: int) -> Iterator[tuple[Server, str]]:
    """Yields a server, and the name of its binlog file that has this number of row changes in transactions of 5,000
    rows, or of one and two rows (then ``rows`` is a multiple of 3)."""
    with Server("mariadb10", options=LARGE_SERVER) as server:
        prepare(server)
        server.execute("FLUSH BINARY LOGS")
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            file = str(cursor.fetchall()[-1][0])
        assert kind == "large" or rows % SMALL_STEP == 0
        server.execute(*(inserts("orders", rows) if kind == "large" else [f"CALL bench.small({rows // SMALL_STEP})"]))
        yield server, file


def add_last(server: Server) -> tuple[str, int]:
    """Writes one more small transaction, and returns the file and offset at which it begins: a file of its own, since a
    start in the middle of a file reads what is before it for the GTIDs."""
    server.execute("FLUSH BINARY LOGS")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, pos = cursor.fetchone()[:2]  # type: ignore[index]
    server.execute("INSERT INTO bench.orders (customer, status, total, items) VALUES (1, 1, 1, 1)")
    return str(file), int(pos)


def binlog_bytes(server: Server) -> int:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        return sum(int(row[1]) for row in cursor.fetchall())


class TowpathCapture:
    """``cdc capture --until-current`` into a new store. ``last``: where the last transaction begins, for
    :meth:`start_up`."""

    def __init__(self, server: Server, folder: Path, last: tuple[str, int] | None) -> None:
        self.folder = folder
        conf = folder / "conf"
        conf.mkdir(parents=True)
        position = "now" if last is None else f"{{file: {last[0]}, pos: {last[1]}}}"
        starts = (("bench", "earliest", "bench"), ("last", position, "bench"), ("none", "earliest", "nothing"))
        for server_id, (name, start, included) in enumerate(starts, start=4711):
            (conf / f"{name}.yaml").write_text(
                f"source: {{url: 'mariadb://{USER}@{HOST}:{server.port}', password_env: BENCH_PASSWORD, server_id: {server_id},"
                f" start: {start}}}\n"
                f"tables: {{include: ['{included}\\..*']}}\n"
                f"store: {{path: {name}/store}}\nmeta: {{path: {name}/meta}}\napply: {{target: lake}}\n"
            )
        self.command = [sys.executable, "-m", "cdc", "--conf-dir", str(conf), "capture", "--until-current"]

    def once(self) -> Run:
        """Runs the whole process."""
        return self._run("bench")

    def start_up(self) -> Run:
        """Runs it for the last transaction only."""
        return self._run("last")

    def excluded(self) -> Run:
        """Runs it so that no table of the binlog is captured."""
        return self._run("none")

    def _run(self, name: str) -> Run:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        os.sync()
        return run([*self.command, name], BENCH_PASSWORD=PASSWORD)


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
        tool_run = run([*self.tool, "--to-last-log", self.first])
        began = time.perf_counter()
        for path in self.folder.iterdir():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        whole_s = tool_run.seconds + time.perf_counter() - began
        return whole_s, run([*self.tool, f"--start-position={self.last[1]}", self.last[0]]).seconds


def lines(options: Options, chosen: Collection[str]) -> Iterator[Measurement]:
    """The lines ``capture-large`` and ``capture-small``: whole processes against connector-java, in turn."""
    peer = connector_java()
    for kind in ("large", "small"):
        name = f"capture-{kind}"
        if name not in chosen:
            continue
        if peer.missing:
            yield Measurement(name, skipped=peer.missing)
            continue
        rows = options.rows if kind == "large" else options.rows // 4 // SMALL_STEP * SMALL_STEP
        with filled(kind, rows) as (server, file), tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder:
            ours = TowpathCapture(server, Path(folder), None)
            ours.once()  # kernels compiled, caches warm
            pairs, least = [], []
            for _ in range(options.rounds):
                pairs.append((ours.once(), peer.read(server, file, rows).whole))
                least.append(_receive(server, Path(folder), file) + run([sys.executable, "-c", _LIBRARIES]).seconds)
        mine, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        yield Measurement(
            name,
            value=statistics.median(other.seconds / own.seconds for own, other in pairs),
            ours_s=statistics.median(span.seconds for span in mine),
            other_s=statistics.median(span.seconds for span in theirs),
            cpu_s=statistics.median(span.cpu_s for span in mine),
            peak_mb=max(span.peak_mb for span in mine),
            floor=statistics.median(span.seconds for span in theirs) / statistics.median(least),
            note=f"{rows:,} row changes",
        )


_LIBRARIES = "import numpy, pydantic, pymysql, structlog, typer, yaml"


def _receive(server: Server, folder: Path, file: str) -> float:
    """Returns the seconds in which the C program of the server receives a binlog file, and keeps it as it is."""
    tool = [
        *client_tool("mariadb10", "mariadb-binlog"), "--no-defaults", "--read-from-remote-server", "--raw",
        f"--host={HOST}", f"--port={server.port}", f"--user={USER}", f"--password={PASSWORD}",
        f"--result-file={folder}/raw-", file,
    ]  # fmt: skip
    return run(tool).seconds


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
            pairs, peaks_mb, excluded_s = [], [], []
            for number in range(options.pairs):
                whole = ours.once()
                mine, other = (whole.seconds, ours.start_up().seconds), theirs.once()
                pairs.append((mine, other))
                peaks_mb.append(whole.peak_mb)
                excluded_s.append(ours.excluded().seconds)
                console.print(
                    f"pair {number + 1}: ours {mine[0]:.2f} ({mine[1]:.2f}), theirs {other[0]:.2f} ({other[1]:.2f})"
                )
            start_s = [statistics.median(pair[side][1] for pair in pairs) for side in (0, 1)]
            net = statistics.median(m[0] - start_s[0] for m, _ in pairs)
            ratio = statistics.median((o[0] - start_s[1]) / (m[0] - start_s[0]) for m, o in pairs)
            with_start = statistics.median(o[0] / m[0] for m, o in pairs)
            table.add_row(
                kind,
                f"{size / 1e6:.0f}",
                *(f"{statistics.median(p[side][0] for p in pairs):.2f} ({start_s[side]:.2f})" for side in (0, 1)),
                f"{size / 1e6 / net:.0f}",
                f"{with_start:.2f}",
                f"{ratio:.2f}",
                "0.9" if kind == "large" else "2.0",
                f"{(statistics.median(excluded_s) - start_s[0]) / net:.2f}",
                f"{max(peaks_mb):.0f}",
            )
    console.print(table)
    console.print(
        f"Medians of {options.pairs} alternating pairs; ratio: speed relative to mariadb-binlog without start-up; "
        f"{os.cpu_count()} CPUs."
    )


if __name__ == "__main__":
    main()
