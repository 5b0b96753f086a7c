"""Jars of Delta and of S3A: resolved once by Ivy into a cache folder, then passed to each session as files.

The file ``complete`` in that folder lists the jars with their SHA-256 at the time of the download, in the format of
``sha256sum``. The jars are hashed before each use, and a jar with another hash is fetched again.

``python -m cdc.lake.runtime.jars`` resolves the jars and prints their paths, with ``--s3`` also those for lakes in
S3. If no repository can be reached, put the jars into a folder and name them in the configuration:
``spark: {conf: {spark.jars: /opt/delta/*.jar}}``.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cdc.base.errors import ConfigError, DamagedError, RetryableError
from cdc.base.log import get_logger
from cdc.disk.cache import cache_dir
from cdc.disk.durable import replace_file
from cdc.lake.runtime.private_pyspark import builder_options

TRIED = (("4.2.0", "4.4.0"), ("4.1.4", "4.4.0"), ("4.0.5", "4.0.1"))
"""Releases of PySpark and delta-spark that were tried together; `make test-sparks` runs tests on each pair."""
_TIMEOUT_S = 900
_log = get_logger(__name__)


@dataclass(frozen=True)
class Packages:
    """Packages that are resolved together, into a folder of the cache that bears the name of the first one."""

    names: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    """``group:artifact`` of what they need and Spark has, or nobody uses."""

    @property
    def folder(self) -> Path:
        return cache_dir() / self.names[0].replace(":", "_")


_SDKS = {"3.5.0": "2.35.4"}
"""The release of Amazon's SDK that hadoop-aws names, by the release of Hadoop."""
CLASSES = Path(__file__).with_name("towpath.jar")
"""Towpath's log store for S3, its local file system and its Connect server, compiled from ``java`` beside it by
``scripts/make-java-classes.sh``."""


@functools.cache
def delta_packages() -> Packages:
    """Returns Delta for the installed PySpark and delta-spark, under the coordinate that delta-spark itself makes of
    both versions. Raises ConfigError if delta-spark is not installed."""
    try:
        from delta.pip_utils import configure_spark_with_delta_pip
    except ImportError as error:
        raise ConfigError(
            f"the package delta-spark cannot be imported: {error}", place="spark", remedy="Install towpath[spark]."
        ) from None
    from pyspark.sql import SparkSession

    options = builder_options(configure_spark_with_delta_pip(SparkSession.Builder()))
    return Packages((options["spark.jars.packages"],))


@functools.cache
def s3_packages() -> Packages:
    """Returns what Spark needs for ``s3a://``, of the release of its Hadoop client. Raises ConfigError for a release
    that was not tried."""
    clients = (spark_home() / "jars").glob("hadoop-client-api-*.jar")
    hadoop = next((client.stem.rpartition("-")[2] for client in clients), "unknown")
    sdk = _SDKS.get(hadoop)
    if sdk is None:
        raise ConfigError(
            f"Towpath has the jars for S3 of Hadoop {', '.join(_SDKS)}, and this Spark has Hadoop {hadoop}",
            place="apply.target",
            remedy="Install PySpark 4.2, or name hadoop-aws of 3.4.2 or later in spark.conf as spark.jars.packages.",
        )
    amazons = [f"software.amazon.awssdk:{module}:{sdk}" for module in ("s3", "s3-transfer-manager", "sts")]
    return Packages(
        (f"org.apache.hadoop:hadoop-aws:{hadoop}", *amazons),
        # The bundle holds all of Amazon's services, in 600 MB. Of the others Spark has newer releases.
        ("software.amazon.awssdk:bundle", "io.netty:*", "org.slf4j:*", "commons-logging:*", "commons-codec:*"),
    )


def delta_jars() -> list[Path]:
    """Returns the jar files of Delta; see :func:`delta_packages` and :func:`jars_of`."""
    return jars_of(delta_packages())


def jars_of(packages: Packages) -> list[Path]:
    """Returns the verified jar files of packages, sorted. Resolves them if the cache lacks them.

    Raises RetryableError if they cannot be fetched, DamagedError if a fetched jar differs from the recorded one.
    """
    folder = packages.folder
    recorded = _recorded(folder)
    if not recorded or _damaged(folder, recorded):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            recorded = _fetched(packages)
    return sorted(folder / "jars" / name for name in recorded)


def of_session(conf: Mapping[str, str], *, with_s3: bool) -> list[str]:
    """Returns the value of ``spark.jars`` for a session with these settings: the jars of ``spark.jars``, and ours.

    Ours are Delta's, and ``with_s3`` also those of S3A and Towpath's classes. A part that ``spark.jars`` or
    ``spark.jars.packages`` name themselves (delta-spark, hadoop-aws) is theirs, in the release that they name. If a
    pattern in ``spark.jars`` cannot be looked through from here (``hdfs:///jars/*.jar``), it is taken to name both.
    Raises what :func:`jars_of` raises.
    """
    entries = [entry.strip() for entry in conf.get("spark.jars", "").split(",") if entry.strip()]
    names = [name for entry in entries for name in _names(entry)]
    names += [package.strip() for package in conf.get("spark.jars.packages", "").split(",")]

    def theirs(artifact: str) -> bool:
        return any(name is None or artifact in name for name in names)

    ours: list[Path] = [] if theirs("delta-spark") else delta_jars()
    if with_s3:
        ours += [] if theirs("hadoop-aws") else jars_of(s3_packages())
        ours += [] if theirs(CLASSES.name) else [CLASSES]
    return [*map(str, ours), *entries]


def of_driver(jars: Sequence[str]) -> list[str]:
    """Returns those of the jars that a driver in this process loads with Spark's own classes, so that an archive can
    have them (:mod:`cdc.lake.runtime.class_archive`), and Towpath's. The others would hide newer ones of Spark. None
    are returned if Delta is another release than ours."""
    ours = [jar for jar in jars if Path(jar).parents[2:3] == (cache_dir(),)]
    names = ("io.delta_delta-spark", "io.delta_delta-storage")
    return [*(jar for jar in ours if Path(jar).name.startswith(names)), str(CLASSES)] if ours else []


def _names(jar: str) -> list[str | None]:
    """Returns the file names of an entry of ``spark.jars``; None stands for files that cannot be listed from here."""
    if not any(sign in jar for sign in "*?[{"):
        return [jar.rpartition("/")[2]]
    path = jar.removeprefix("file://")
    return [None] if "://" in path or "{" in path else [file.name for file in Path(path).parent.glob(Path(path).name)]


def _fetched(packages: Packages) -> dict[str, str]:
    """Fetches missing and damaged jars, and returns the jars with their hashes. The caller holds the lock."""
    folder = packages.folder
    recorded = _recorded(folder)
    damaged = _damaged(folder, recorded)
    if recorded and not damaged:
        return recorded
    for name in damaged:
        _log.warning("a cached jar has changed since its download; fetching it again", jar=str(folder / "jars" / name))
        for copy in _copies(folder, name):
            copy.unlink(missing_ok=True)
    if damaged or not (folder / "complete").exists():
        _resolve(packages)
    jars = sorted((folder / "jars").glob("*.jar"))
    digests = {jar.name: digest for jar in jars if (digest := _sha256(jar)) is not None}
    for name, digest in recorded.items():
        if digests.get(name) != digest:
            raise DamagedError(
                f"this jar has the SHA-256 {digests.get(name, '(missing)')}, and had {digest} at its first download",
                place=str(folder / "jars" / name),
                remedy=f"Find out who changed it; then remove {folder}, or name jar files in spark.conf as spark.jars.",
            )
    if not recorded:
        lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
        replace_file(folder / "complete", lines.encode())
    return recorded or digests


def _recorded(folder: Path) -> dict[str, str]:
    """Returns the recorded SHA-256 by jar name; empty before the first download."""
    try:
        lines = (folder / "complete").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}


def _damaged(folder: Path, recorded: dict[str, str]) -> list[str]:
    return [name for name, digest in recorded.items() if _sha256(folder / "jars" / name) != digest]


def _sha256(jar: Path) -> str | None:
    """Returns None for a missing file."""
    try:
        with jar.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def _copies(folder: Path, name: str) -> list[Path]:
    """Returns the jar and Ivy's own copies of it: ``cache/{organisation}/{module}/jars/{file}``."""
    kept = [jar for jar in (folder / "cache").rglob("*.jar") if f"{jar.parents[2].name}_{jar.name}" == name]
    return [folder / "jars" / name, *kept]


def _resolve(packages: Packages) -> None:
    """Lets spark-submit fetch the packages; the program that it then runs is this file, which does nothing."""
    folder = packages.folder
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        *("--master", "local[1]", "--packages", ",".join(packages.names), "--conf", f"spark.jars.ivy={folder}"),
        *(("--exclude-packages", ",".join(packages.excluded)) if packages.excluded else ()),
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
            f"the jars of {packages.names[0]} could not be fetched: {why}",
            place="spark",
            remedy="Check that Maven Central can be reached and has them (tried together: "
            f"{tried_pairs()}), or name jar files in spark.conf as spark.jars.",
        )


def tried_pairs() -> str:
    """Returns :data:`TRIED` for messages."""
    return ", ".join(f"PySpark {spark} with delta-spark {delta}" for spark, delta in TRIED)


def _reason(output: str) -> str:
    """Returns the most specific line of Ivy's or Java's error output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for mark in ("UNRESOLVED", "unresolved dependency", "JAVA_HOME", "java", "Exception"):
        for line in lines:
            if mark in line:
                return line.lstrip(":\t ")
    return lines[-1] if lines else "spark-submit printed nothing"


def spark_home() -> Path:
    """Returns ``$SPARK_HOME``, else the Spark inside the installed PySpark."""
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home)
    import pyspark

    return Path(pyspark.__file__).parent


if __name__ == "__main__" and "--resolved" not in sys.argv:
    for jar in (*delta_jars(), *((*jars_of(s3_packages()), CLASSES) if "--s3" in sys.argv else ())):
        sys.stdout.write(f"{jar}\n")
