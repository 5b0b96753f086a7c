"""An archive of the classes that a driver loads (AppCDS), which later drivers map into memory: they start in half the
CPU time, because a JVM otherwise reads and verifies about 30,000 classes each time.

The first driver on a machine writes the archive when it ends, in a few seconds, in the background. There is one archive
for each Java and set of jars, in the folder ``classes`` of :func:`~cdc.disk.cache.cache_dir`, of about 200 MB. Archives
that were not used for a month are removed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cdc.base.log import get_logger
from cdc.disk.cache import cache_dir
from cdc.lake.runtime.jars import CLASSES, spark_home

DRIVER = "driver"
_OPTIONS = "spark.driver.extraJavaOptions"
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_THEIRS = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit", "AutoCreateSharedArchive")
_UNUSED_S = 30 * 24 * 3600.0
_UNFINISHED_S = 300.0
_log = get_logger(__name__)


def digest_of(values: Mapping[str, str], program: str) -> str:
    """Returns what the archive of a program depends on, as a digest: Java, and the jars of Spark and of these
    settings."""
    java = Path(shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin") or shutil.which("java") or "java")
    jars = [*sorted((spark_home() / "jars").glob("*.jar")), *map(Path, class_path(values))]
    lines = [program, _identity(java.resolve()), *map(_identity, jars)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def class_path(values: Mapping[str, str]) -> list[str]:
    """Returns the jars of ``spark.driver.extraClassPath``."""
    return [jar for jar in values.get("spark.driver.extraClassPath", "").split(os.pathsep) if jar]


@dataclass(frozen=True)
class NewArchive:
    """An archive that is to be written."""

    folder: Path
    digest: str
    """The archive's name, before its checksum."""


def add_archive(values: dict[str, str], program: str = DRIVER) -> NewArchive | None:
    """Adds the options of a program's archive to the settings of a driver. Returns the archive that the driver should
    write at its end; None if there is one, or if there can be none."""
    options, folder = values.get(_OPTIONS, ""), cache_dir() / "classes"
    if any(option in options for option in _THEIRS) or (program == DRIVER and str(CLASSES) not in class_path(values)):
        return None
    if ":" in str(folder):  # which separates two archives
        return None
    archive = NewArchive(folder, digest_of(values, program))
    try:
        usable = _found(archive)
        if usable is not None:
            os.utime(usable)
            values[_OPTIONS] = f"{options} {shlex.quote(f'-XX:SharedArchiveFile={usable}')} {_QUIET}"
            return None
        archive.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _begin(archive.folder / f"{archive.digest}.begun"):
            return None
        _remove_unused(archive.folder)
    except OSError as error:  # the cache cannot be written
        _log.debug("this driver uses no archive of classes", folder=str(archive.folder), reason=str(error))
        return None
    values[_OPTIONS] = f"{options} -XX:+RecordDynamicDumpInfo {_QUIET}"
    return archive


def _begin(marker: Path) -> bool:
    """Whether this process may write the archive: none has begun to within :data:`_UNFINISHED_S`. That one may run for
    days, so it does not keep others from it for longer. Two that begin at once do no harm. Raises OSError."""
    if marker.exists() and marker.stat().st_mtime > time.time() - _UNFINISHED_S:
        return False
    marker.touch(mode=0o600)
    os.utime(marker)
    return True


def _found(new: NewArchive) -> Path | None:
    """Returns the largest archive that is whole, and removes others: a JVM that maps a damaged one crashes, and of two
    that were written at the same time one is enough. Raises OSError."""
    usable = None
    for file in sorted(new.folder.glob(f"{new.digest}-*.jsa"), key=lambda file: -file.stat().st_size):
        if usable is not None:
            file.unlink(missing_ok=True)
        elif f"{_crc32(file):08x}" == file.stem.rpartition("-")[2]:
            usable = file
        else:
            _log.warning("the archive of Spark's classes is damaged, and is written anew", file=str(file))
            file.unlink(missing_ok=True)
    return usable


def _crc32(file: Path) -> int:
    crc = 0
    with file.open("rb") as reading:
        while part := reading.read(1 << 20):
            crc = zlib.crc32(part, crc)
    return crc


def _remove_unused(folder: Path) -> None:
    """Removes archives that were not used for long, and those of JVMs that were killed while they wrote."""
    for file in folder.iterdir():
        limit_s = {".jsa": _UNUSED_S, ".begun": _UNUSED_S, ".new": _UNFINISHED_S}.get(file.suffix)
        if limit_s is not None and file.stat().st_mtime < time.time() - limit_s:
            file.unlink(missing_ok=True)


def _identity(file: Path) -> str:
    try:
        stat = file.stat()
    except OSError:
        return f"{file} is missing"
    return f"{file} {stat.st_size} {stat.st_mtime_ns}"
