"""Delta's jars: resolved once by Ivy into a cache folder, then handed to each session as files.

``python -m spark_jobs.jars`` resolves them and prints their paths. Where no repository can be reached, put the jars
into a folder and name them in the configuration: ``spark: {conf: {spark.jars: /opt/delta/*.jar}}``.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from cdc.errors import RetryableError

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The Delta release for the pinned PySpark; later ones have no jar for it."""

_TIMEOUT_S = 900


def cache_dir() -> Path:
    """``$TOWPATH_CACHE``, else ``$XDG_CACHE_HOME/towpath``, else ``~/.cache/towpath``."""
    given = os.environ.get("TOWPATH_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "towpath"


def delta_jars() -> list[Path]:
    """The jar files, sorted; resolves them when the cache does not hold them yet. Raises RetryableError."""
    folder = cache_dir() / PACKAGE.replace(":", "_")
    complete = folder / "complete"
    if not complete.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.exists():
                _resolve(folder)
                complete.touch()
    return sorted((folder / "jars").glob("*.jar"))


def _resolve(folder: Path) -> None:
    """Let spark-submit fetch the package; the program that it then starts is this file, which does nothing."""
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--master", "local[1]", "--packages", PACKAGE, "--conf", f"spark.jars.ivy={folder}"),
        *(__file__, "--resolved"),
    ]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment["SPARK_HOME"] = str(spark_home())
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        failed = done.returncode != 0
        why = _reason(done.stderr)
    except (OSError, subprocess.TimeoutExpired) as error:
        failed, why = True, str(error)
    if failed or not any((folder / "jars").glob("*.jar")):
        raise RetryableError(
            f"the jars of {PACKAGE} could not be fetched: {why}",
            place="spark",
            remedy="Check that Maven Central can be reached, or name jar files in spark.conf as spark.jars.",
        )


def _reason(output: str) -> str:
    """The line of Ivy's or Java's complaints that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for mark in ("UNRESOLVED", "unresolved dependency", "JAVA_HOME", "java", "Exception"):
        for line in lines:
            if mark in line:
                return line.lstrip(":\t ")
    return lines[-1] if lines else "spark-submit said nothing"


def spark_home() -> Path:
    """``$SPARK_HOME``, else the Spark inside the installed PySpark."""
    given = os.environ.get("SPARK_HOME")
    if given:
        return Path(given)
    import pyspark

    return Path(pyspark.__file__).parent


if __name__ == "__main__" and "--resolved" not in sys.argv:
    for jar in delta_jars():
        sys.stdout.write(f"{jar}\n")
