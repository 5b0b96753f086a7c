"""A day of a shop in two hours: traffic, ALTERs, kills, rotation, retention, maintenance and verification, all of it
beside each other, and a look at memory, files, lag and CPU four times a minute.

A MySQL 9 takes 500 changes a second in three tables, whose rows are as many at the end as at the beginning. Capture
runs in a process that is started again whenever it ends; ``cdc apply`` runs every half minute, ``cdc maintain`` every
twenty minutes, ``cdc verify`` every half hour. Every ten minutes a column comes or goes or grows, and every five minutes
a process dies by SIGKILL: capture, a running apply, or the server. The binlog is rotated and purged, segments of the
store go ten minutes after their ack, and files and logs of the Delta tables after twenty.

The exit status is 1 if a verification differs, if a command fails that nobody has killed, or if one of the curves that
ought to be level has grown.

    python -m benchmarks.day [--minutes 120] [--rate 500] [--json FILE] [--page FILE]
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks.day_page import Event, Results, Sample, grown, markdown, plot, render
from benchmarks.results import current_versions, this_machine
from benchmarks.scale.processes import Look, pss_mb
from benchmarks.workload import PASSWORD_ENV
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig, load
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from cdc.watch.status import collect
from tests.fault.support import RestartedCommand, command, wait_for

_ORDERS, _CUSTOMERS = 50_000, 20_000
_CHANGES = 10
"""Changes of rows in a transaction of the shop."""
_OPTIONS = ("--max-binlog-size=16M", "--binlog-expire-logs-seconds=1200", "--innodb-flush-log-at-trx-commit=2")
_TABLES = (
    "CREATE TABLE shop.customers (id INT PRIMARY KEY, name VARCHAR(60) NOT NULL, orders INT NOT NULL, seen DATETIME(3))",
    (
        "CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, customer INT NOT NULL, status VARCHAR(20) NOT NULL,"
        " total DECIMAL(12,2) NOT NULL, note VARCHAR(200), created DATETIME(6) NOT NULL)"
    ),
    (
        "CREATE TABLE shop.order_lines (order_id BIGINT, line TINYINT, sku CHAR(12) NOT NULL, quantity INT NOT NULL,"
        " price DECIMAL(10,2), PRIMARY KEY (order_id, line))"
    ),
)
_ALTERS = (
    "ALTER TABLE shop.orders ADD COLUMN channel VARCHAR(10) NOT NULL DEFAULT 'web'",
    "ALTER TABLE shop.customers ADD COLUMN changed DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    "ALTER TABLE shop.orders MODIFY status VARCHAR(40) NOT NULL",
    "ALTER TABLE shop.orders DROP COLUMN channel",
    "ALTER TABLE shop.customers DROP COLUMN changed",
    "ALTER TABLE shop.orders MODIFY status VARCHAR(20) NOT NULL",
)
_CONF = """\
source: {{url: 'mysql://{user}@{host}:{port}', password_env: {password_env}, server_id: 4711}}
tables: {{include: ['shop\\..*']}}
store: {{path: store, segment_bytes: 8388608, retain: {{acked_for: 10m}}}}
meta: {{path: meta}}
apply:
  target: lake
  small_batches: {{engine: deltalake, max_rows: 100000}}
  properties: {{delta.deletedFileRetentionDuration: interval 20 minutes, delta.logRetentionDuration: interval 20 minutes}}
batch: {{max_wait_s: 1}}
spark: {{master: 'local[2]'}}
"""


class Shop(threading.Thread):
    """The traffic: purchases at a steady pace, each a transaction of ten changes. It goes on after the server was away."""

    def __init__(self, server: Server, rate: int) -> None:
        super().__init__(name="shop", daemon=True)
        self._server, self._pause_s = server, _CHANGES / rate
        self._rng = random.Random(1)
        self._stop_asked = threading.Event()
        self.away = threading.Event()
        """Whether the server is down on purpose."""
        self.changes = 0
        self.error: BaseException | None = None

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                self._trade()
            except Exception as error:  # noqa: BLE001 - handed to whoever stops the traffic
                if not self.away.is_set():
                    self.error = error
                    return
                time.sleep(0.5)

    def _trade(self) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            connection.autocommit(False)
            cursor.execute("SELECT MIN(id), MAX(id) FROM shop.orders")
            oldest, newest = next(iter(cursor.fetchall()))
            due = time.monotonic()
            while not self._stop_asked.is_set():
                newest += 1
                self._purchase(cursor, newest, oldest)
                oldest += 1
                connection.commit()
                self.changes += _CHANGES
                due = max(due + self._pause_s, time.monotonic() - 1)
                time.sleep(max(0.0, due - time.monotonic()))

    def _purchase(self, cursor: object, new: int, old: int) -> None:
        rng, execute = self._rng, cursor.execute  # type: ignore[attr-defined]
        customer = rng.randrange(_CUSTOMERS)
        execute(
            "INSERT INTO shop.orders (id, customer, status, total, note, created) VALUES (%s, %s, 'new', %s, %s, NOW(6))",
            (new, customer, rng.randrange(10**6) / 100, "n" * rng.randrange(80)),
        )
        execute(
            "INSERT INTO shop.order_lines VALUES "
            + ", ".join(f"({new}, {n}, 'sku-{rng.randrange(9999)}', {rng.randrange(1, 9)}, 9.99)" for n in range(3))
        )
        execute("UPDATE shop.customers SET orders = orders + 1, seen = NOW(3) WHERE id = %s", (customer,))
        paid = rng.randrange(old + 1, new)
        execute("UPDATE shop.orders SET status = IF(status = 'paid', 'sent', 'paid') WHERE id = %s", (paid,))
        execute("DELETE FROM shop.order_lines WHERE order_id = %s", (old,))
        execute("DELETE FROM shop.orders WHERE id = %s", (old,))


def fill(server: Server) -> None:
    """Creates the tables with as many rows as they keep."""
    server.execute("CREATE DATABASE shop", *_TABLES)
    numbers = "WITH RECURSIVE s AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM s WHERE n < {0}) SELECT"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("USE shop")
        cursor.execute("SET cte_max_recursion_depth = 1000000")
        for sql in (
            f"INSERT INTO customers {numbers.format(_CUSTOMERS)} n - 1, CONCAT('customer ', n), 0, NULL FROM s",
            f"INSERT INTO orders {numbers.format(_ORDERS)} n, n MOD {_CUSTOMERS}, 'new', n / 7, NULL, NOW(6) FROM s",
            (
                f"INSERT INTO order_lines {numbers.format(3 * _ORDERS)} 1 + (n - 1) DIV 3, (n - 1) MOD 3,"
                " CONCAT('sku-', n MOD 9999), 1, 9.99 FROM s"
            ),
        ):
            cursor.execute(sql)


@dataclass
class Commands:
    """The commands of the day, with the most memory of each apply and all CPU seconds."""

    config: DestinationConfig
    failures: list[str] = field(default_factory=list)
    peak_mb: float = 0.0
    """The most memory of an apply since the last sample."""
    apply_s: float = 0.0
    """The time of the last apply."""
    cpu_s: float = 0.0
    """CPU seconds of all that have ended."""
    apply: psutil.Process | None = None
    killed: set[int] = field(default_factory=set)
    """The processes that were killed."""

    def run(self, *words: str) -> int:
        """Runs a command to its end, and returns its exit code. A failure without a kill is written down."""
        began = time.monotonic()
        log = self.config.file.parent.parent / f"{words[0]}.log"
        with log.open("w") as out:
            process = subprocess.Popen(command(self.config, *words), stdout=out, stderr=out)
            watched = psutil.Process(process.pid)
            if words[0] == "apply":
                self.apply = watched
            cpu_s = 0.0
            while process.poll() is None:
                look = Look()
                pids = look.tree([process.pid])
                cpu_s = max(cpu_s, look.usage([process.pid]).cpu_s)
                if words[0] == "apply":
                    self.peak_mb = max(self.peak_mb, pss_mb(pids))
                time.sleep(0.1)
        self.cpu_s += cpu_s
        if words[0] == "apply":
            self.apply, self.apply_s = None, time.monotonic() - began
        if process.returncode and process.pid not in self.killed:
            last = " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
            self.failures.append(f"cdc {' '.join(words)}: exit code {process.returncode}: {last[:600]}")
        return process.returncode


class Day:
    """One run."""

    def __init__(self, server: Server, config: DestinationConfig, shop: Shop, say: Callable[[str], None]) -> None:
        self.server, self.config, self.shop, self.say = server, config, shop, say
        self.commands = Commands(config)
        self.capture = RestartedCommand(config, "capture")
        self.began = time.monotonic()
        self.samples: list[Sample] = []
        self.events: list[Event] = []
        self._captures: dict[int, float] = {}
        """CPU seconds of each capture, by its process id."""
        self._alters = self._kills = 0

    def minutes(self) -> float:
        return (time.monotonic() - self.began) / 60

    def tell(self, kind: str, text: str) -> None:
        self.events.append(Event(minute=round(self.minutes(), 2), kind=kind, text=text))
        self.say(f"{self.minutes():6.1f} min  {kind}: {text}")

    def alter(self) -> None:
        """Executes the next ALTER while the traffic goes on."""
        statement = _ALTERS[self._alters % len(_ALTERS)]
        self._alters += 1
        self.server.execute(statement)
        self.tell("alter", statement)

    def kill(self) -> None:
        """Kills capture, the next apply in its midst, or the server, in turn."""
        victim = ("capture", "apply", "server")[self._kills % 3]
        self._kills += 1
        if victim == "capture":
            self.capture.kill()
        elif victim == "apply":
            while (process := self.commands.apply) is None:
                time.sleep(0.1)
            time.sleep(random.Random(self._kills).uniform(0.5, 2.5))
            self.commands.killed.add(process.pid)
            for each in (*process.children(recursive=True), process) if process.is_running() else ():
                each.kill()
        else:
            self.shop.away.set()
            self.server.kill()
            time.sleep(5)
            self.server.restart()
            self.shop.away.clear()
        self.tell("kill", victim)

    def maintain(self) -> None:
        code = self.commands.run("maintain")
        self.tell("maintain", f"exit code {code}" if code else "done")

    def verify(self) -> bool:
        """Returns whether everything is proved."""
        code = self.commands.run("verify", "--wait", "120")
        self.tell("verify", f"exit code {code}" if code else "everything is proved")
        return code == 0

    def bring_level(self) -> None:
        """Applies what the store has."""
        self.commands.run("apply")

    def sample(self) -> None:
        """Looks at everything once."""
        process = self.capture.process
        capture_mb = 0.0
        if process is not None and process.poll() is None:
            look = Look()
            self._captures[process.pid] = look.usage([process.pid]).cpu_s
            capture_mb = pss_mb(look.tree([process.pid]))
        document = collect(self.config, lake=False)
        lag_s = max((entry["lag_s"] for entry in document["subscriptions"]), default=0.0)
        root = self.config.file.parent.parent
        store, meta, lake = (_folder(root / name) for name in ("store", "meta", "lake"))
        log_files = sum(1 for _ in (root / "lake").glob("**/_delta_log/*"))
        peak_mb, self.commands.peak_mb = self.commands.peak_mb, 0.0
        self.samples.append(
            Sample(
                minute=round(self.minutes(), 3),
                changes=self.shop.changes,
                lag_s=lag_s,
                capture_mb=round(capture_mb, 1),
                apply_mb=round(peak_mb, 1),
                apply_s=round(self.commands.apply_s, 2),
                cpu_s=round(sum(self._captures.values()) + self.commands.cpu_s, 2),
                store_mb=store[1],
                store_files=store[0],
                meta_mb=meta[1],
                meta_files=meta[0],
                lake_mb=lake[1],
                lake_files=lake[0] - log_files,
                log_files=log_files,
            )
        )


def _folder(path: Path) -> tuple[int, float]:
    """Returns the number of files below a folder, and their megabytes."""
    sizes = []
    for file in path.rglob("*"):
        try:
            if file.is_file():
                sizes.append(file.stat().st_size)
        except FileNotFoundError:  # removed meanwhile
            continue
    return len(sizes), round(sum(sizes) / 1e6, 2)


def _every(
    minutes: float, day: Day, action: Callable[[], object], stop: threading.Event, first: float
) -> threading.Thread:
    """Runs an action at its minutes, in a thread of its own. An error ends the day."""

    def run() -> None:
        due = first
        while not stop.wait(max(0.0, (due - day.minutes()) * 60)):
            try:
                action()
            except Exception as error:  # noqa: BLE001 - it is reported, and ends the day
                day.commands.failures.append(f"{action.__name__}: {error!r}")
                stop.set()
            due = max(due + minutes, day.minutes())

    thread = threading.Thread(target=run, name=action.__name__, daemon=True)
    thread.start()
    return thread


def run(options: argparse.Namespace, say: Callable[[str], None]) -> tuple[Day, bool]:
    """Runs the day. Returns it, and whether the last verification has proved everything."""
    with (
        Server("mysql9", options=_OPTIONS) as server,
        tempfile.TemporaryDirectory(prefix="towpath-day-", dir=options.folder) as folder,
    ):
        fill(server)
        file = Path(folder) / "conf" / "shop.yaml"
        file.parent.mkdir()
        file.write_text(_CONF.format(user=USER, host=HOST, port=server.port, password_env=PASSWORD_ENV))
        os.environ[PASSWORD_ENV] = PASSWORD
        shop = Shop(server, options.rate)
        day = Day(server, load(file), shop, say)
        stop = threading.Event()
        try:
            shop.start()
            wait_for(lambda: any((file.parent.parent / "store" / "segments").glob("*.index")), "a capture")
            if day.commands.run("snapshot"):
                raise RuntimeError(day.commands.failures[-1])
            day.tell("snapshot", "the tables are filled")
            threads = [
                _every(0.5, day, day.bring_level, stop, day.minutes()),
                _every(0.25, day, day.sample, stop, day.minutes()),
                _every(5, day, day.kill, stop, 4),
                _every(10, day, day.alter, stop, 7),
                _every(20, day, day.maintain, stop, 16),
                _every(30, day, day.verify, stop, 26),
            ]
            stop.wait(max(0.0, (options.minutes - day.minutes()) * 60))
            stop.set()
            for thread in threads:
                thread.join(600)
            shop.stop()
            day.commands.run("apply", "--until-empty")
            proved = day.verify()
            if BatchService(day.config).subscription().parked:
                day.commands.failures.append("tables are parked at the end")
        finally:
            day.capture.stop(terminate=True)
        return day, proved


def main() -> int:
    parser = argparse.ArgumentParser(description="A day of a shop in two hours.")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--rate", type=int, default=500, help="changes a second")
    parser.add_argument("--folder", type=Path, help="where store, meta and lake are kept meanwhile")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="a page in Markdown, with its picture beside it")
    options = parser.parse_args()
    console = Console(width=160)
    machine = this_machine()
    day, proved = run(options, lambda text: console.print(text, markup=False, highlight=False))
    results = Results(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        minutes=options.minutes,
        rate=options.rate,
        machine=machine,
        versions=current_versions("deltalake"),
        proved=proved,
        failures=tuple(day.commands.failures),
        samples=tuple(day.samples),
        events=tuple(day.events),
    )
    if options.json:
        options.json.write_text(render(results), encoding="utf-8")
    if options.page:
        picture = options.page.with_suffix(".svg")
        options.page.write_text(markdown(results, picture.name), encoding="utf-8")
        picture.write_text(plot(results), encoding="utf-8")
    faults = [*results.failures, *grown(results)]
    for fault in faults:
        console.print(fault, markup=False)
    return 1 if faults or not proved else 0


if __name__ == "__main__":
    sys.exit(main())
