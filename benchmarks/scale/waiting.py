"""Many destinations whose stores a server has, watched as Airflow's triggerer watches them with ``start: data``.

    python -m benchmarks.scale.waiting [--destinations 100] [--seconds 60] [--changes 40] [--write]

``cdc server`` has the stores; this process has a trigger for each destination in one event loop. It first looks at
both while nothing changes, then puts single transactions into stores, and measures the time until the trigger fires.
``--write`` keeps the result beside the others of ``make bench-scale``, which measures this, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path

import psutil
from airflow.triggers.base import TriggerEvent

from benchmarks.scale import page
from benchmarks.scale.processes import Look, pss_mb
from benchmarks.scale.results import KEPT, Waiting, load, render
from cdc.airflow.triggers import TowpathStoreTrigger
from cdc.config import DestinationConfig
from cdc.meta import open_meta
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from tests.support.server import ServerProcess, client_config, with_tokens
from tests.support.unit_batches import IDENTITY, make_config


class _Destination:
    """A destination at the server, and the trigger that waits for it."""

    def __init__(self, folder: Path, number: int) -> None:
        self.config: DestinationConfig = with_tokens(make_config(folder, f"d{number:03d}"))
        self._log, self.filled_s = BinlogBuilder(), 0.0
        self._filler = Filler(self.config.store.path, destination=self.config.name)
        open_meta(self.config).bind_source(IDENTITY)
        self.put()

    def put(self) -> None:
        self._log.transaction("shop", "orders", [1])
        self._filler.put(self._log)
        self.filled_s = time.monotonic()

    def events(self, folder: Path, url: str) -> AsyncGenerator[TriggerEvent, None]:
        client = client_config(self.config, folder / "client", url)
        return TowpathStoreTrigger(conf_file=str(client.file), store=url, pause_s=1.0).run()


def measure(count: int, seconds: float, changes: int) -> Waiting:
    """Measures with this many destinations, for this many idle seconds, and with this many changes."""
    with tempfile.TemporaryDirectory(prefix="towpath-waiting-") as name:
        folder = Path(name)
        destinations = [_Destination(folder, number) for number in range(count)]
        server = ServerProcess(folder / "conf", folder / "server.log")
        url = server.start()
        try:
            return asyncio.run(_watch(folder, destinations, server, url, seconds, changes))
        finally:
            server.stop()


async def _watch(
    folder: Path, destinations: list[_Destination], server: ServerProcess, url: str, seconds: float, changes: int
) -> Waiting:
    assert server.process is not None
    triggers = [destination.events(folder, url) for destination in destinations]
    await asyncio.gather(*(anext(events) for events in triggers))  # what was there before
    following = [asyncio.ensure_future(anext(events)) for events in triggers]
    await asyncio.sleep(5)
    pids = {"server": server.process.pid, "triggers": os.getpid()}
    before, requests, began = Look(), _requests(server), time.monotonic()
    await asyncio.sleep(seconds)
    idle_s, after = time.monotonic() - began, Look()
    shares = {part: after.own(pid).since(before.own(pid), idle_s) for part, pid in pids.items()}
    idle_requests = _requests(server) - requests
    connections = sum(
        connection.status == psutil.CONN_ESTABLISHED and bool(connection.raddr)
        and connection.raddr.port == server.port
        for connection in psutil.Process().net_connections("tcp")
    )  # fmt: skip
    dice, latencies = random.Random(7), []
    for _ in range(changes):
        number = dice.randrange(len(destinations))
        await asyncio.to_thread(destinations[number].put)
        await following[number]
        latencies.append(time.monotonic() - destinations[number].filled_s)
        following[number] = asyncio.ensure_future(anext(triggers[number]))
        await asyncio.sleep(dice.uniform(0.1, 1.5))
    for wait in following:
        wait.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    for events in triggers:
        await events.aclose()
    return Waiting(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        destinations=len(destinations),
        seconds=idle_s,
        server_percent=shares["server"],
        triggers_percent=shares["triggers"],
        server_mb=pss_mb([pids["server"]]),
        connections=connections,
        requests_per_minute=60 * idle_requests / idle_s,
        changes=changes,
        latency_median_s=statistics.median(latencies),
        latency_most_s=max(latencies),
    )


def _requests(server: ServerProcess) -> int:
    """Returns how many requests for changes the server has answered."""
    from urllib.request import urlopen

    with urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if 'operation="changes"' in line and "_total{" in line)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--destinations", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60, help="duration of the look while nothing changes (60)")
    parser.add_argument("--changes", type=int, default=40, help="transactions that are put into stores (40)")
    parser.add_argument("--write", action="store_true", default=bool(os.environ.get("BENCH_WRITE")))
    options = parser.parse_args()
    waiting = Waiting.model_validate(
        {name: round(value, 3) if isinstance(value, float) else value
         for name, value in measure(options.destinations, options.seconds, options.changes).model_dump().items()}
    )  # fmt: skip
    print(json.dumps(waiting.model_dump(), indent=2))
    if options.write:
        results = load(KEPT).model_copy(update={"waiting": waiting})
        KEPT.write_text(render(results), encoding="utf-8")
        page.PAGE.write_text(page.markdown(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
