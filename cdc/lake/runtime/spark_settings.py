"""The settings of Spark's drivers and sessions, and where the configuration says that a driver runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.config.spark import FIXED_SETTINGS
from cdc.lake.runtime import jars

if TYPE_CHECKING:
    from cdc.config import SparkConfig

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
OLD_VERSIONS = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""Setting: whether Delta refuses versions that are older than a table's retention of deleted files."""
RUNTIME_SETTINGS = FIXED_SETTINGS | {
    "spark.databricks.delta.snapshotPartitions": "1",
    # Changed rows come from immutable segments and are reduced in a total order. Reading them again gives the same
    # rows, so Delta need not materialize them. The merge caches them itself. Delta forbids that because a cache does
    # not pin the version of a Delta source; this source reads no Delta table.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.merge.failSourceCachedAfterMaterialization": "false",
    OLD_VERSIONS: "false",  # a version can be read as long as its files are there
}
_LOCAL_FILES = {
    "spark.hadoop.fs.file.impl": "io.towpath.LocalFiles",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "io.towpath.LocalFiles$Context",
}
"""Hadoop's own classes start a process (chmod, readlink) for each file that they create or rename on a local disk."""


def in_process(config: SparkConfig) -> bool:
    """Whether the driver runs in this process (a local master) rather than under spark-submit."""
    return config.remote is None and config.master.startswith("local") and not config.master.startswith("local-")


def is_inside_submit() -> bool:
    """Whether spark-submit has started this program, so that the program has its session."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def settings(config: SparkConfig) -> dict[str, str]:
    """Returns all settings of a driver that this process starts or submits. ``spark.conf`` overrides each of them,
    except for lists, which it adds to. Raises ConfigError, and what :func:`~cdc.lake.runtime.jars.of_session` raises.
    """
    values = dict(_DELTA) | dict(RUNTIME_SETTINGS)
    # Spark's and the JVM's time zone must both be UTC: dates before 1970 depend on the latter.
    log4j = Path(__file__).with_name("log4j2.properties")
    values["spark.driver.extraJavaOptions"] = f"-Duser.timezone=UTC -Dlog4j2.configurationFile=file:{log4j}"
    values["spark.executor.extraJavaOptions"] = "-Duser.timezone=UTC"
    values["spark.ui.showConsoleProgress"] = "false"
    values["spark.pyspark.python"] = sys.executable
    values["spark.python.daemon.module"] = "cdc.lake.rows.worker_daemon"
    if in_process(config):
        values |= {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(_cores(config.master)),
        }
    session_jars = jars.of_session(config.conf, with_s3=config.lake is not None)
    values["spark.jars"] = ",".join(session_jars)
    if in_process(config) and (on_driver := jars.of_driver(session_jars)):
        values["spark.driver.extraClassPath"] = os.pathsep.join(on_driver)
        values |= _LOCAL_FILES
    if config.lake is not None:
        values |= config.lake.spark_settings()
    return _merged(values, config.conf)


_LISTS = {
    "spark.sql.extensions": ",",
    "spark.driver.extraJavaOptions": " ",
    "spark.executor.extraJavaOptions": " ",
    "spark.driver.extraClassPath": os.pathsep,
}
"""Settings of which Spark takes several values, each with what separates them."""


def _merged(ours: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """Returns ``conf`` over our settings. Lists keep our values, before those of ``conf``; ``spark.jars`` is ours."""
    values = {**ours, **conf, "spark.jars": ours["spark.jars"]}
    for key, separator in _LISTS.items():
        listed = conf.get(key, "").strip()
        if listed and key in ours and ours[key] not in listed:
            values[key] = f"{ours[key]}{separator}{listed}"
    if not values["spark.jars"]:
        del values["spark.jars"]
    return values


def _cores(master: str) -> int:
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    return int(inside) if inside.isdigit() else (os.cpu_count() or 2) if inside == "*" else 1


def worker_path() -> str:
    """Returns the PYTHONPATH of Python workers, with the checkout that towpath runs from, if it runs from one."""
    root = str(Path(__file__).resolve().parents[3])
    folders = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if root not in folders and "site-packages" not in root:
        folders.insert(0, root)
    return os.pathsep.join(folders)
