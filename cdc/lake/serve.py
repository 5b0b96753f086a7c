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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from cdc.base.errors import CdcError
from cdc.base.run_identity import RunIdentity, work_for_starter
from cdc.config import DestinationConfig, load
from cdc.lake.jobs.values import JOBS, SparkJob
from cdc.lake.runtime.failures import explain, to_json
from cdc.lake.runtime.session import acquire

_WATCH_S = 0.5
"""The interval at which the connection is looked at during a job."""


def main(argv: Sequence[str] | None = None) -> int:
    """Connects to the socket, and does jobs until it is closed."""
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
                work_for_starter(RunIdentity.of_document(request["run"]))
                with _ended_with(connection) as send:
                    try:
                        job = JOBS[request["job"]].of_arguments(request["arguments"])
                        answer = {"result": _done(job, config, send)}
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


def _done(job: SparkJob[Any, Any], config: DestinationConfig, send: Callable[[Any], None]) -> Any:
    """Does a job, and sends its progress. Returns its result as JSON."""
    results, reports = job.types()
    result = job.run(config, lambda now: send({"progress": reports.dump_python(now, mode="json")}))
    return results.dump_python(result, mode="json")


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
