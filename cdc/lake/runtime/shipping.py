"""Sends Towpath to executors that do not have it: its modules and its compiled kernels, in one archive.

spark-submit hands the archive to the cluster like any file of ``spark.archives``. Each executor unpacks it into the
folder :data:`FOLDER` of its working folder, which :data:`PYTHONPATH <settings>` names before all others: so an executor
runs the driver's Towpath, also where another one is installed. Executors need a Python of the same minor version with
Towpath's dependencies; an archive with both is named in ``spark.conf`` (``docs/how-to/spark.md``).

Kernels that were built ahead are in it for all types of CPU. Of others, executors with the driver's type of CPU find
them compiled, and other executors compile them in their working folder.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from cdc.base.version import package_version
from cdc.kernels.cache import cache_folder, cache_root
from cdc.kernels.prebuilt import FOLDER as PREBUILT

FOLDER = "towpath_shipped"
_PATH = "spark.executorEnv.PYTHONPATH"
_ARCHIVES = "spark.archives"
_ROOT = Path(__file__).resolve().parents[3]
_KERNELS = "cdc/kernels/__pycache__/kernels"
_METADATA = f"Metadata-Version: 2.1\nName: towpath\nVersion: {package_version()}\n"


def settings(values: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Writes the archive into ``folder``. Returns the settings that send it, beside what ``values`` send already."""
    from cdc.decode.reader import warm_up

    warm_up()  # compiles the kernels that all tables need, if this machine has not done so
    archive = folder / f"{FOLDER}.zip"
    _write(archive)
    sent = [entry for entry in (values.get(_ARCHIVES, ""), f"{archive}#{FOLDER}") if entry]
    path = [entry for entry in (FOLDER, values.get(_PATH, "")) if entry]
    return {_ARCHIVES: ",".join(sent), _PATH: os.pathsep.join(path)}


def _write(archive: Path) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as writing:
        for name, file in _files():
            writing.write(file, name)
        # The version by which executors and the server compare themselves with the driver.
        writing.writestr(f"towpath-{package_version()}.dist-info/METADATA", _METADATA)


def _files() -> Iterator[tuple[str, Path]]:
    """Yields the files of the archive, each with its name in there."""
    for file in sorted((_ROOT / "cdc").rglob("*.py")):
        yield str(file.relative_to(_ROOT)), file
    for file in sorted(PREBUILT.glob("kernels-*")):
        yield str(file.relative_to(_ROOT)), file
    root = cache_root()
    for folder in sorted(root.iterdir()):
        module = _ROOT / "cdc" / f"{folder.name.rpartition('-')[0].replace('.', '/')}.py"
        if module.is_file() and cache_folder(module) == folder:  # others are of earlier sources
            for file in sorted(folder.glob("*.kernel")):
                yield f"{_KERNELS}/{folder.name}/{file.name}", file
