"""The driver's JVM of this process: its start, what it writes to standard error, and its end.

The JVM and its Python workers write what only developers can read, stack traces of workers that were ended on purpose
among it. On a screen where everything that went wrong is already a sentence nobody should meet these: they go to the
log at level debug (``cdc -v``), and the last of them into the error when the JVM does not start. ``CDC_SPARK_LOG``
leaves standard error to the JVM, unread.
"""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from cdc.log import get_logger
from spark_jobs.runtime.conf_file import submit_options

if TYPE_CHECKING:
    from pyspark import SparkConf

_LAST_LINES = 5
log = get_logger(__name__)


class DriverStartError(Exception):
    """The JVM did not start; the message is the last that it wrote."""


def start(conf: SparkConf) -> None:
    """Start the JVM and its SparkContext with these settings, for ``SparkSession.builder`` to find.

    Raises DriverStartError where the JVM ends at once, and whatever Spark raises where the context does not start.
    """
    from pyspark import SparkContext

    with submit_options(dict(conf.getAll())) as options, _submit_arguments(options):
        gateway = _launch()
    context: Any = SparkContext(conf=conf, gateway=gateway)
    # A thread of this process takes the JVM's counters: where that dies, the thread would print its own exception.
    context._accumulatorServer.handle_error = _note_broken_connection


@contextmanager
def _submit_arguments(options: list[str]) -> Iterator[None]:
    """PySpark takes spark-submit's arguments from the environment, beside a configuration that it would put on the
    command line."""
    before = os.environ.get("PYSPARK_SUBMIT_ARGS")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(options)} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYSPARK_SUBMIT_ARGS"]
        else:
            os.environ["PYSPARK_SUBMIT_ARGS"] = before


def _launch() -> Any:
    from pyspark.java_gateway import launch_gateway

    if os.environ.get("CDC_SPARK_LOG"):
        return launch_gateway()  # type: ignore[no-untyped-call]
    reading, writing = os.pipe()
    last: deque[str] = deque(maxlen=_LAST_LINES)
    reader = threading.Thread(target=_relay, args=(os.fdopen(reading, errors="replace"), last), name="spark-stderr")
    reader.daemon = True
    reader.start()
    try:
        return launch_gateway(popen_kwargs={"stderr": writing})  # type: ignore[no-untyped-call]
    except Exception as error:
        os.close(writing)
        writing = -1
        reader.join(timeout=5)
        raise DriverStartError(" ".join(last) or str(error)) from error
    finally:
        if writing >= 0:
            os.close(writing)


def _relay(lines: IO[str], last: deque[str]) -> None:
    """Log each line until the JVM, and every worker that inherited its standard error, has gone."""
    with lines:
        for line in lines:
            if text := line.strip():
                last.append(text)
                log.debug("spark", line=text)


def _note_broken_connection(_request: Any, address: Any) -> None:
    """In place of :meth:`socketserver.BaseServer.handle_error`, which prints the exception under way."""
    logging.getLogger(__name__).debug(
        "the driver broke the connection of its counters %s: %r", address, sys.exception()
    )


def pid() -> int | None:
    """The process id of this process's own driver JVM."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    return process.pid if process is not None and process.poll() is None else None


def kill() -> None:
    """End the JVM that was started here, whatever state it is in, and forget that it was there."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext._active_spark_context
    gateway: Any = SparkContext._gateway
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait()
    if context is not None and context._accumulatorServer is not None:
        ignore_errors(context._accumulatorServer.shutdown)
    ignore_errors(gateway.shutdown)
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


def ignore_errors(call: Any) -> None:
    """Closing what is broken may fail in any way, and there is nothing to be done about it."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        logging.getLogger(__name__).debug("closing a broken session: %s", error)
