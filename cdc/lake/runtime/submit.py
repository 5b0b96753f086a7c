"""A driver under spark-submit that does one job after another for the process that started it.

The process sends requests over a Unix socket in a folder that only this user can read, and the driver answers each:

- ``{"job": NAME, "arguments": {…}, "run": {…}}``: a job of :data:`cdc.lake.jobs.values.JOBS`, its fields, and the
  identity of the process, which the commits carry;
- any number of ``{"progress": …}`` while the job runs;
- ``{"result": …}`` or ``{"error": {…}}``, as :func:`cdc.lake.runtime.failures.to_json` writes an error.

When the process ends, however it ends, the connection breaks and the driver ends within a second. Tokens pass through
the socket, so they stand on no command line, in no file and in no environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.base.run_identity import current_run
from cdc.lake.runtime import driver, shipping
from cdc.lake.runtime.failures import from_json
from cdc.lake.runtime.jars import spark_home
from cdc.lake.runtime.session import said_start
from cdc.lake.runtime.spark_settings import settings, worker_path

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

PROGRAM = Path(__file__).resolve().parents[1] / "serve.py"
_WAIT_S = 0.2
"""The interval at which the start of a driver is looked at."""
_END_S = 20.0
"""The time that a driver may take to end by itself."""


class DriverEndedError(Exception):
    """The driver ended before it answered; the message says how: "was killed by signal 9"."""


class SubmittedDriver:
    """A driver under spark-submit, started at its first job."""

    def __init__(self, config: DestinationConfig) -> None:
        self._config = config
        self._resources = ExitStack()
        self._process: subprocess.Popen[str] | None = None
        self._connection: Connection[Any, Any] | None = None
        self.start_s = 0.0
        """The time that the last job waited for the driver's start."""

    def run(self, job: str, arguments: dict[str, Any], progress: Callable[[Any], object] = lambda _: None) -> Any:
        """Runs a job and returns its result. ``progress`` is called with each JSON value that the job reports. Raises
        the job's CdcError, and DriverEndedError."""
        self.start_s = 0.0
        if self._connection is None:
            began = time.monotonic()
            with said_start(self._config.spark.master):
                self._connect()
            self.start_s = time.monotonic() - began
        connection = self._connection
        assert connection is not None
        answer: dict[str, Any] = {}
        try:
            run = current_run()
            request = {"job": job, "arguments": arguments, "run": None if run is None else run.document}
            connection.send_bytes(json.dumps(request).encode())
            while "result" not in answer and "error" not in answer:
                answer = json.loads(connection.recv_bytes())
                if "progress" in answer:
                    progress(answer["progress"])
        except (EOFError, OSError):
            raise self._ended() from None
        if "error" in answer:
            raise from_json(answer["error"])
        return answer["result"]

    def pid(self) -> int | None:
        """Returns the process id of spark-submit; None if it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def close(self) -> None:
        """Lets the driver end, and kills it if it does not."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                self._kill()
        self._resources.close()

    def _connect(self) -> None:
        """Starts spark-submit and waits until the driver connects."""
        folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="towpath-")))  # 0700
        listener = self._resources.enter_context(Listener(str(folder / "jobs"), "AF_UNIX"))
        self._start(folder / "jobs")
        listener._listener._socket.settimeout(_WAIT_S)  # type: ignore[attr-defined]
        while True:
            try:
                self._connection = listener.accept()
                return
            except TimeoutError:
                if self.pid() is None:
                    raise self._ended() from None

    def _start(self, socket: Path) -> None:
        spark = self._config.spark
        values = settings(spark)
        if spark.ship == "towpath":
            values |= shipping.settings(values, socket.parent)
        options = self._resources.enter_context(driver.submit_options(values))
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", spark.master, *options]
        command += [str(PROGRAM), str(self._config.file), "--socket", str(socket)]
        environment = os.environ | {
            "SPARK_HOME": str(spark_home()),
            "PYTHONPATH": worker_path(),
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, text=True
        )

    def _ended(self) -> DriverEndedError:
        """Returns the error for a driver that does not answer, after its end."""
        self._kill()
        assert self._process is not None
        code = self._process.returncode
        return DriverEndedError(f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}")

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
