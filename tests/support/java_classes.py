"""Compiles Towpath's Java classes: ``python -m tests.support.java_classes`` writes the jar that is kept in git. It holds
the sources beside the classes, so that it is seen when they have changed since."""

from __future__ import annotations

import subprocess
import tempfile
import zipfile
from pathlib import Path

from cdc.lake.runtime.jars import CLASSES, delta_jars, spark_home

SOURCES = CLASSES.parent / "java"


def sources() -> dict[str, bytes]:
    """Returns the sources, by their names in the jar."""
    return {str(path.relative_to(SOURCES)): path.read_bytes() for path in sorted(SOURCES.rglob("*.java"))}


def kept() -> dict[str, bytes]:
    """Returns what the jar holds, by name."""
    with zipfile.ZipFile(CLASSES) as jar:
        return {name: jar.read(name) for name in jar.namelist()}


def compiled() -> dict[str, bytes]:
    """Returns the classes of the sources, by their names in the jar. Needs the compiler of Java 17."""
    jars = [f"{spark_home()}/jars/*", *map(str, delta_jars())]  # Spark has the newer Hadoop client
    with tempfile.TemporaryDirectory() as folder:
        files = [str(SOURCES / name) for name in sources()]
        command = ["javac", "--release", "17", "-g:none", "-cp", ":".join(jars), "-d", folder, *files]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*.class"))}


def main() -> None:
    with zipfile.ZipFile(CLASSES, "w", zipfile.ZIP_DEFLATED) as jar:
        for name, content in (sources() | compiled()).items():
            jar.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content)


if __name__ == "__main__":
    main()
