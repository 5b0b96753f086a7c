"""A Hive metastore in a process of its own, of the jars that PySpark has. Its database is an embedded Derby."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from cdc.testing.servers import HOST, free_port


class HiveMetastore:
    """A metastore that any number of Spark sessions reach by :attr:`address`. It can be killed and started again on its
    data."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"thrift://{HOST}:{self._port}"

    def start(self) -> None:
        """Starts it, and returns when it takes connections."""
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self._folder}/metastore;create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"{self._folder}/warehouse",
            "hive.async.log.enabled": "false",  # Spark has no jar for it
            "derby.stream.error.file": f"{self._folder}/derby.log",
        }
        java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ.get('PATH', '')}")
        assert java is not None, "Spark needs Java, too"
        jars = Path(pyspark.__file__).parent / "jars"
        command = [java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self._port)]
        log = self._folder / "metastore.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, cwd=self._folder, stdout=output, stderr=output)
        deadline = time.monotonic() + 180
        while not self._answers():
            assert self._process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)

    def kill(self) -> None:
        """Sends SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((HOST, self._port)) == 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
