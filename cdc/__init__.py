"""Towpath: changes of MySQL and MariaDB into Delta Lake tables, in batches that Airflow schedules.

Each package below states what lives in it, what may import it, and what it promises. Importing ``cdc`` itself
loads nothing else.
"""

from __future__ import annotations

from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    __version__: str

__all__ = ["__version__", "create_views_as_of", "read_as_of", "read_changes"]


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and few commands need it

    try:
        version_text = version("towpath")
    except PackageNotFoundError:  # a checkout that is on the path without being installed
        version_text = "0.0.0+checkout"
    globals()[name] = version_text
    return version_text


def read_as_of(
    spark: Any,
    destination: Any = None,
    *,
    seq: int | None = None,
    time: datetime | str | None = None,
    gtid: str | None = None,
    tables: Iterable[str] | None = None,
) -> dict[str, Any]:
    """Returns the tables of a destination as of one transaction of the source: Spark DataFrames, by ``db.table``.

    ``spark``: a session with Delta's jars and extension. ``destination``: its name in the folder of configurations
    (``$CDC_CONF``, else ``./conf``), a configuration file, or a loaded configuration; None if there is only one. The
    point is a ``seq``, a ``time`` with its zone (everything that was committed before it), or a ``gtid`` or GTID set
    (inclusive). ``tables``: names of tables; None for all, without those that began later.

    Each table is read at the newest Delta version that does not lie behind the point. Changes that the version lacks
    are read from the store when the DataFrame is evaluated. A table has the columns of its mode; in ``append`` it has
    the changes up to the point. Nothing is written.

    Raises TargetError if neither Delta's history nor the store reaches the point, UsageError for a point that the store
    does not have, ConfigError.
    """
    frames: dict[str, Any] = import_module("cdc.lake.as_of").read_as_of(
        spark, destination, seq=seq, time=time, gtid=gtid, tables=tables
    )
    return frames


def create_views_as_of(
    spark: Any,
    destination: Any = None,
    *,
    prefix: str = "",
    seq: int | None = None,
    time: datetime | str | None = None,
    gtid: str | None = None,
    tables: Iterable[str] | None = None,
) -> dict[str, str]:
    """Creates a temporary view of each table as of one transaction, for SQL, and returns their names by ``db.table``.

    A view is called ``{prefix}{db}_{table}`` and lives as long as the session. See :func:`read_as_of`.
    """
    names: dict[str, str] = import_module("cdc.lake.as_of").create_views_as_of(
        spark, destination, prefix=prefix, seq=seq, time=time, gtid=gtid, tables=tables
    )
    return names


def read_changes(spark: Any, destination: Any, table: str, *, after_seq: int, last_seq: int) -> Any:
    """Returns the changes of a table with ``after_seq`` < seq ≤ ``last_seq`` as a Spark DataFrame, read from the store.

    It has the table's own columns and those of mode ``append``: ``_op``, ``_seq``, ``_row``, ``_commit_time``,
    ``_gtid`` and ``_before``, whatever the table's mode is. ``spark`` and ``destination``: see :func:`read_as_of`.
    ``table``: ``db.table``. If the table was altered in between, the result has the columns from before and after.

    Raises CutOffError if retention has removed these changes, UsageError if the store does not have them yet or is
    read through ``store.stage``, DamagedError, ConfigError.
    """
    return import_module("cdc.lake.store_changes").read_table_changes(
        spark, destination, table, after_seq=after_seq, last_seq=last_seq
    )
