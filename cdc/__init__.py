"""Towpath: changes of MySQL and MariaDB into Delta Lake tables, in batches that Airflow schedules.

Each package below states what lives in it, what may import it, and what it promises. Importing ``cdc`` itself
loads nothing else.
"""

from __future__ import annotations

from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from cdc.config import DestinationConfig
    from cdc.streaming import FileStore, MemoryRing, Stream

    __version__: str

__all__ = ["__version__", "create_views_as_of", "read_as_of", "read_changes", "stream"]


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    version_text: str = import_module("cdc.base.version").package_version()
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
    frames: dict[str, Any] = import_module("cdc.lake.jobs.as_of").read_as_of(
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
    names: dict[str, str] = import_module("cdc.lake.jobs.as_of").create_views_as_of(
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


def stream(
    source: str | Path | DestinationConfig | None = None,
    *,
    password: str | None = None,
    tables: str | Iterable[str] | Mapping[str, Any] | None = None,
    start: str | Mapping[str, Any] | datetime | None = None,
    state: str | Path | None = None,
    readers: Sequence[str] = ("default",),
    store: MemoryRing | FileStore | str = "memory",
    follow: bool = True,
    **settings: Any,
) -> Stream:
    """Captures a server in a thread of this program, and returns its transactions as they come::

        with cdc.stream("mysql://cdc@db.example:3306", password="…", tables=r"shop\\..*", state="./state") as stream:
            for transaction in stream:
                for change in transaction.changes:
                    print(change.op, change.table, change.before, change.after)
                transaction.ack()

    ``source``: ``mysql://USER@HOST:PORT``, ``mariadb://…``, ``binlog:///FOLDER``; or a configuration, its file, or its
    name (see :func:`read_as_of`), whose source and tables are taken. ``tables``: regular expressions over ``db.table``,
    or the section ``tables`` of a configuration, as in ``{"include": […], "exclude": […]}``.

    ``start``: where a stream without cursors begins: ``now`` (the default), ``earliest``, a datetime with its zone,
    ``{"gtid": "…"}`` or ``{"file": "binlog.000012", "pos": 4}``.

    ``state``: the folder of the readers' cursors. With it a stream goes on at the first transaction that was not acked;
    without it, nothing outlasts the stream. ``readers``: the names of the readers, each with a cursor of its own.
    ``store``: ``memory`` or ``file``; or a :class:`cdc.streaming.MemoryRing` or :class:`cdc.streaming.FileStore` with
    sizes. ``follow=False``: the stream ends with what the server has when it begins.

    ``settings``: further keys of the section ``source``, such as ``ssl_mode``, ``heartbeat_s``, or ``server_id``, the
    id with which this program registers at the server (by default one at random above 2**31).

    Returns once capture reads the source. Raises UsageError and ConfigError for arguments, SourceRefusedError if the
    server cannot be captured, IdentityError if it is not the one of the cursors, SourceUnavailableError,
    LeaseHeldError if another program has ``state`` open. Later errors are raised in the readers. Each
    :class:`cdc.base.errors.CdcError` says by ``retryable`` whether a new stream may succeed.
    """
    arguments = {"password": password, "tables": tables, "start": start, "settings": settings}
    opened: Stream = import_module("cdc.streaming.open").open_stream(
        source, state, readers, store, follow=follow, arguments=arguments
    )
    return opened
