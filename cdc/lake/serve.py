"""The program that spark-submit runs: does the jobs of the process that submitted it, in one Spark session.

::

    spark-submit … cdc/lake/serve.py CONF_FILE --socket PATH

It reads requests from the socket until the other side closes it; :mod:`cdc.lake.runtime.submit` has both messages.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.config import DestinationConfig

_WATCH_S = 0.5
"""How often the connection is looked at during a job."""

Report = Callable[[Any], None]
"""Sends the progress of a job, a JSON value, to the process that submitted it. Safe in any thread."""


def apply_batch(
    spark: SparkSession, config: DestinationConfig, _report: Report, lease: dict[str, Any]
) -> list[dict[str, Any]]:
    """Merges the batch of a lease. Returns its results as JSON objects."""
    from cdc.batches.lease import Lease
    from cdc.batches.parking import TableGate
    from cdc.client import open_batches
    from cdc.lake.apply.batch import run

    leased, service = Lease.from_dict(lease), open_batches(config)
    batch, token = leased.manifest, leased.token
    results = run(
        spark,
        batch,
        config,
        check=lambda: service.check(batch.batch, token, subscriber=batch.subscriber),
        subscription=service.subscription(batch.subscriber),
        gate=TableGate(service.meta, batch.subscriber),
    )
    return [result.model_dump(mode="json") for result in results]


def verify(
    spark: SparkSession, config: DestinationConfig, report: Report, tables: list[str], limit: int, wait_s: float
) -> dict[str, Any]:
    """Compares tables with the source. Returns the report as a JSON object."""
    from cdc.lake.runtime.session import TableSessions
    from cdc.lake.verify.lake import SparkLake
    from cdc.lake.verify.run import Options
    from cdc.lake.verify.run import verify as run

    with closing(TableSessions(spark, None)) as sessions:
        return run(config, lambda: SparkLake(config, sessions), tables, Options(limit, wait_s), report).document()


def snapshot(
    _spark: SparkSession, config: DestinationConfig, report: Report, tables: list[str] | None, whole: bool = False
) -> list[dict[str, Any]]:
    """Takes snapshots of tables and loads them. Returns a JSON object for each."""
    from cdc.lake.jobs.snapshot import take_snapshots

    found = take_snapshots(config, tables, progress=lambda now: report(now.to_json()), whole=whole)
    return [one.as_dict() for one in found]


def replay(
    _spark: SparkSession, config: DestinationConfig, report: Report, tables: list[str], request: dict[str, str | None]
) -> list[dict[str, Any]]:
    """Builds tables again from the store. Returns a JSON object for each."""
    from cdc.lake.jobs.replay import Request
    from cdc.lake.jobs.replay import replay as run

    found = run(config, tables, Request(**request), progress=lambda now: report(now.to_json()))
    return [one.as_dict() for one in found]


def retry_parked(_spark: SparkSession, config: DestinationConfig, _report: Report) -> list[dict[str, Any]]:
    """Tries parked tables again. Returns a JSON object for each that came back."""
    from cdc.lake.jobs.parked import retry_parked as run

    return [one.to_json() for one in run(config)]


def maintain(
    _spark: SparkSession, config: DestinationConfig, report: Report, tables: list[str], vacuum: bool
) -> list[dict[str, Any]]:
    """Maintains tables. Returns a JSON object for each."""
    from cdc.lake.jobs.maintain_tables import maintain_tables

    found = maintain_tables(config, tables, vacuum=vacuum, progress=lambda now: report(now.as_dict()))
    return [one.as_dict() for one in found]


JOBS: Mapping[str, Callable[..., Any]] = {
    "apply_batch": apply_batch,
    "verify": verify,
    "snapshot": snapshot,
    "replay": replay,
    "retry_parked": retry_parked,
    "maintain": maintain,
}
"""The jobs by their names: functions of the session, the configuration, a function for the progress, and JSON values.
They return JSON values."""


def main(argv: Sequence[str] | None = None) -> int:
    """Connects to the socket, and does jobs until it is closed."""
    from cdc.config import load
    from cdc.lake.runtime.failures import explain, to_json
    from cdc.lake.runtime.session import acquire

    parser = argparse.ArgumentParser(prog="serve.py", description="Do the jobs that come over a socket.")
    parser.add_argument("conf_file", type=Path)
    parser.add_argument("--socket", type=Path, required=True)
    arguments = parser.parse_args(argv)
    config = load(arguments.conf_file)
    with Client(str(arguments.socket), "AF_UNIX") as connection:
        spark = acquire(config.spark).spark
        try:
            while True:
                request = json.loads(connection.recv_bytes())
                with _ended_with(connection) as send:
                    try:
                        job = JOBS[request["job"]]
                        answer = {
                            "result": job(spark, config, lambda now: send({"progress": now}), **request["arguments"])
                        }
                    except CdcError as error:
                        answer = {"error": to_json(error)}
                    except Exception as error:  # noqa: BLE001 - Spark and py4j raise hundreds of types
                        answer = {"error": to_json(explain(error, request["job"]))}
                # The next request may come at once, so nothing looks at the connection any more.
                connection.send_bytes(json.dumps(answer).encode())
        except (EOFError, ConnectionError):  # the other side has ended
            return 0
        finally:
            spark.stop()


@contextmanager
def _ended_with(connection: Connection[Any, Any]) -> Iterator[Callable[[Any], None]]:
    """Yields a function that sends JSON values. Ends this process at once when the other side closes the connection
    during the block: nobody would read the answer, and a job may be killed at any moment."""
    lock, done = threading.Lock(), threading.Event()

    def send(value: Any) -> None:
        with lock:
            connection.send_bytes(json.dumps(value).encode())

    def watch() -> None:
        while not done.wait(_WATCH_S):
            # The other side says nothing while it waits for an answer, so what can be read is the end.
            if connection.poll():
                os._exit(1)

    watcher = threading.Thread(target=watch, name="other-side", daemon=True)
    watcher.start()
    try:
        yield send
    finally:
        done.set()
        watcher.join()


if __name__ == "__main__":
    sys.exit(main())
