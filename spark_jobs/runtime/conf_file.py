"""The settings of a driver, handed over by files that only this user can read.

Whatever stands on a command line is shown to every user of the machine by ``ps``, and among the settings are keys of
object stores. So spark-submit gets them by ``--properties-file``; what Java itself would show, its options, by an
argument file. Both are removed when the driver has read them.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")


@contextmanager
def submit_options(values: Mapping[str, str]) -> Iterator[list[str]]:
    """Arguments for spark-submit that stand for these settings, valid inside the block.

    ``conf/spark-defaults.conf`` is read as it would be without them; these win.
    """
    with tempfile.TemporaryDirectory(prefix="towpath-conf-") as name:  # 0700
        folder = Path(name)
        shown = dict(values)
        if values.get("spark.submit.deployMode", "client") == "client":  # else the driver has other disks
            for key in _JAVA_OPTIONS:
                if values.get(key):
                    file = folder / f"{key.rpartition('.')[2]}.txt"
                    _write(file, "".join(f"{_argument(one)}\n" for one in shlex.split(values[key])))
                    shown[key] = f"@{file}"
        file = folder / "spark.properties"
        _write(file, "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in shown.items()))
        yield ["--properties-file", str(file), "--load-spark-defaults"]


def _write(file: Path, text: str) -> None:
    file.touch(mode=0o600)
    file.write_text(text, encoding="utf-8")


def _escaped(text: str) -> str:
    """As java.util.Properties reads it."""
    text = re.sub(r"[\\=:#! ]", r"\\\g<0>", text)
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r").replace("\f", "\\f")


def _argument(text: str) -> str:
    """As the launcher ``java`` reads an argument file."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
