"""The program that spark-submit runs: does the jobs of the process that submitted it, in one Spark session.

::

    spark-submit … spark_jobs/serve.py CONF_FILE --socket PATH

It reads requests from the socket until the other side closes it; :mod:`spark_jobs.runtime.submit` has both messages.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.errors import CdcError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.config import DestinationConfig


def apply_batch(spark: SparkSession, config: DestinationConfig, manifest: str, token: str) -> list[dict[str, Any]]:
    """Merges the batch of a manifest. Returns its results as JSON objects."""
    from cdc.batches.manifest_files import load_manifest
    from cdc.batches.parking import TableGate
    from cdc.batches.service import BatchService
    from spark_jobs.apply_batch import run

    batch, service = load_manifest(Path(manifest)), BatchService(config)
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
    spark: SparkSession, config: DestinationConfig, tables: list[str], limit: int, wait_s: float
) -> dict[str, Any]:
    """Compares tables with the source. Returns the report as a JSON object."""
    from cdc.verify.run import Options
    from cdc.verify.run import verify as run
    from spark_jobs.runtime.session import TableSessions
    from spark_jobs.verify import SparkLake

    with closing(TableSessions(spark, None)) as sessions:
        return run(config, lambda: SparkLake(config, sessions), tables, Options(limit, wait_s)).document()


JOBS: Mapping[str, Callable[..., Any]] = {"apply_batch": apply_batch, "verify": verify}
"""The jobs by their names: functions of the session, the configuration and JSON values, which return JSON values."""


def main(argv: Sequence[str] | None = None) -> int:
    """Connects to the socket, and does jobs until it is closed."""
    from cdc.config import load
    from spark_jobs.runtime.failures import explain, to_json
    from spark_jobs.runtime.session import from_submit

    parser = argparse.ArgumentParser(prog="serve.py", description="Do the jobs that come over a socket.")
    parser.add_argument("conf_file", type=Path)
    parser.add_argument("--socket", type=Path, required=True)
    arguments = parser.parse_args(argv)
    config = load(arguments.conf_file)
    with Client(str(arguments.socket), "AF_UNIX") as connection:
        spark = from_submit()
        try:
            while True:
                try:
                    request = json.loads(connection.recv_bytes())
                except EOFError:
                    return 0
                try:
                    answer = {"result": JOBS[request["job"]](spark, config, **request["arguments"])}
                except CdcError as error:
                    answer = {"error": to_json(error)}
                except Exception as error:  # noqa: BLE001 - Spark and py4j raise hundreds of types
                    answer = {"error": to_json(explain(error, request["job"]))}
                connection.send_bytes(json.dumps(answer).encode())
        finally:
            spark.stop()


if __name__ == "__main__":
    sys.exit(main())
