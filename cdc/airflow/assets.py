"""The assets of a destination: one for each Delta table, partitioned by intervals of time, and one for all of them.

A consumer of a table::

    orders = table_asset("shop", "shop.orders")

    with DAG("orders_hourly", schedule=PartitionedAssetTimetable(assets=orders), catchup=False):

        @task
        def report(**context):
            interval = TableInterval.of(context, orders)
            changes = cdc.read_changes(spark, "shop", "shop.orders", **interval.seqs)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self
from urllib.parse import SplitResult, quote

from airflow.sdk import Asset, AssetAlias

from cdc.base.errors import UsageError
from cdc.base.targets import dataset_of, split_table


def table_asset(destination: str, table: str) -> Asset:
    """Returns the asset of a Delta table. ``table``: ``db.table`` at the source.

    Its events are emitted by the DAG ``intervals_<destination>``, one for each interval.
    """
    db, name = (quote(part, safe="") for part in split_table(table))
    return Asset(name=f"towpath_{destination}_{db}.{name}", uri=f"towpath://lake/{destination}/{db}/{name}")


_HOSTS = {"lake": (1, 3), "proved": (3,), "changes": (1,), "store": (1,)}
"""The first part of a URI with the scheme ``towpath``, and the possible numbers of names after it."""


def checked_uri(uri: SplitResult) -> SplitResult:
    """Checks the URI of an asset with the scheme ``towpath``, for Airflow. Raises ValueError, as Airflow expects."""
    names = uri.path.strip("/").split("/")
    if len(names) not in _HOSTS.get(uri.netloc, ()) or not all(names):
        raise ValueError(
            f"{uri.geturl()} names no asset of Towpath. Write towpath://lake/DEST, towpath://lake/DEST/DB/TABLE, "
            "towpath://proved/DEST/DB/TABLE or towpath://changes/DEST."
        )
    return uri


def destination_asset(destination: str) -> Asset:
    """Returns the asset of all tables of a destination. An event says that an interval is complete in all tables,
    except for those in its ``left_out``."""
    return Asset(name=f"towpath_{destination}", uri=f"towpath://lake/{destination}")


def proved_asset(destination: str, table: str) -> Asset:
    """Returns the asset of a Delta table that was proved to equal its source. ``table``: ``db.table`` at the source.

    An event is emitted by each run that has verified the table if everything was proved that the run has verified: of
    the DAG ``verify_<destination>``, of a backfill, or of a :class:`TowpathVerifyOperator` of your own.
    """
    db, name = (quote(part, safe="") for part in split_table(table))
    return Asset(name=f"towpath_{destination}_{db}.{name}_proved", uri=f"towpath://proved/{destination}/{db}/{name}")


def delta_asset(path: str) -> Asset:
    """Returns the asset of a Delta table by its own address: a path, or a URI without credentials. Its name and its URI
    are ``file:///lake/shop/orders`` or ``s3://bucket/lake/shop/orders``.

    An event is emitted by each run of apply, of a snapshot and of a replay that has changed the table:
    :class:`cdc.airflow.TableChange`.
    """
    namespace, name = dataset_of(path)
    path = quote(name, safe="/:=@+,~")
    return Asset(uri=f"file://{path}" if namespace == "file" else f"{namespace}/{path}")


def changes_asset(destination: str) -> Asset:
    """Returns the asset of all Delta tables of a destination. An event says that a run of apply has changed some of
    them, and names them in ``tables``."""
    return Asset(name=f"towpath_{destination}_changes", uri=f"towpath://changes/{destination}")


PROVED = AssetAlias("towpath_proved")
"""The alias through which a verification emits its events: its tables are not known when DAGs are parsed."""


@dataclass(frozen=True)
class TableInterval:
    """An interval of a table, as the event of its asset describes it."""

    destination: str
    table: str
    """``db.table`` at the source."""
    path: str
    """The path or URI of the Delta table."""
    start: datetime
    """The begin of the interval, inclusive."""
    end: datetime
    """Its end, exclusive."""
    after_seq: int
    """The interval has the transactions with ``after_seq`` < seq ≤ ``last_seq``."""
    last_seq: int
    gtid: str | None
    """The GTID of the last transaction up to the interval's end; None if it has none."""
    file: str | None
    """The binlog file in which that transaction ends,"""
    pos: int | None
    """and its end there."""
    batch: int | None
    """The batch that brought the interval's end into the lake; None if its manifest is not kept."""
    batches: tuple[int, ...]
    """All batches with transactions of the interval, as far as their manifests are kept."""
    delta_version: int
    """A version of the Delta table that has all changes of the interval, and may have later ones."""
    applied_seq: int
    """The position of that version. If it lies after ``last_seq``, the version has later changes, too."""
    rows: int
    """Rows that were inserted, updated or deleted at the source."""
    transactions: int
    ddl: int
    """DDL statements."""

    @property
    def seqs(self) -> dict[str, int]:
        """The arguments ``after_seq`` and ``last_seq`` of :func:`cdc.read_changes`."""
        return {"after_seq": self.after_seq, "last_seq": self.last_seq}

    @classmethod
    def of(cls, context: Mapping[str, Any], asset: Asset) -> Self:
        """Returns the interval that a run of a consumer is for. ``context``: the task's.

        A run that waited for several events of the interval, because it was published again, takes the newest. Raises
        UsageError if no event of the asset has started the run, or events of several intervals have.
        """
        events = list(context["triggering_asset_events"].get(asset, ()))
        place, key = f"run {context['dag_run'].run_id}", getattr(context["dag_run"], "partition_key", None)
        if not events:
            raise UsageError(
                f"no event of the asset {asset.name} has started this run",
                place=place,
                remedy=f"Clear the interval in the DAG of its producer, or run `airflow backfill create` for it. The "
                f"run's partition key is {key}.",
            )
        if len({event.partition_key for event in events}) > 1:
            raise UsageError(
                f"events of {len({event.partition_key for event in events})} intervals have started this run",
                place=place,
                remedy=f"Read each with TableInterval.from_extra(event.extra): context['triggering_asset_events']"
                f"[{asset.name}].",
            )
        return cls.from_extra(max(events, key=lambda event: event.timestamp).extra)

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any]) -> Self:
        """Returns the interval that the ``extra`` of an event describes. Raises UsageError if it describes none."""
        try:
            values = {field.name: extra[field.name] for field in fields(cls)}
            values |= {name: datetime.fromisoformat(values[name]) for name in ("start", "end")}
            return cls(**values | {"batches": tuple(values["batches"])})
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is not an event of a table's interval: {error}") from None

    def as_extra(self) -> dict[str, Any]:
        """Returns the ``extra`` of the event."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {
            "start": self.start.isoformat(),
            "end": self.end.isoformat(),
            "batches": list(self.batches),
        }
