"""Publishing complete intervals: the tasks of the DAG ``intervals_<dest>``, ``wait >> publish >> left_out``.

A run belongs to an interval, which is its partition. Airflow stores the events of a task together with its success, so
each try emits all events of the interval or none, and only the try that succeeds does. Clearing ``publish`` reads the
interval again from the store and emits its events again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow.sdk import AssetAlias, BaseSensorOperator

from cdc.airflow import lineage, links, xcom
from cdc.airflow.assets import TableInterval, destination_asset, table_asset
from cdc.airflow.base import DestinationOperator
from cdc.airflow.compat import AirflowFailException, AirflowSensorTimeout, AirflowSkipException
from cdc.airflow.configuration import read_config
from cdc.base.errors import LakeBehindError, StoreIncompleteError, UsageError
from cdc.base.log import hide_password

if TYPE_CHECKING:
    from airflow.sdk import Context

    from cdc.config import AirflowConfig, DestinationConfig
    from cdc.lake.intervals import Interval, IntervalContent, TableContent

KEY_FORMAT = "%Y-%m-%dT%H:%M:%S"
"""The form of partition keys: the interval's beginning, without an offset. It is Airflow's default, so that its mappers
(``StartOfHourMapper``, ``StartOfDayMapper``) read them as they are."""
CRON = {"hour": "0 * * * *", "day": "0 0 * * *"}
"""When an interval ends."""
_EVENTS = 1000
"""The number of newest events that are searched for the events of an interval and its neighbours."""


def time_zone(settings: AirflowConfig) -> str:
    """Returns the time zone of the intervals. Hours are those of UTC: a local hour may come twice."""
    return settings.timezone if settings.interval == "day" else "UTC"


def _intervals() -> Any:
    """Returns ``cdc.lake.intervals``, imported only when a task runs, because DAG files are parsed often."""
    from cdc.lake import intervals  # loads PyArrow

    return intervals


def interval_of(settings: AirflowConfig, context: Mapping[str, Any]) -> tuple[str, Interval]:
    """Returns the partition key of a run and its interval. Raises UsageError for a run without a key, and for a key
    that is not the beginning of an interval."""
    run = context["dag_run"]
    key = run.partition_key
    example = datetime(2026, 1, 1).strftime(KEY_FORMAT)  # noqa: DTZ001 - a text
    remedy = f"Run `airflow backfill create --dag-id {run.dag_id}`, or trigger it with a partition key like {example}."
    if not key:
        raise UsageError("this run is for no interval", place=f"run {run.run_id}", remedy=remedy)
    zone = ZoneInfo(time_zone(settings))
    try:
        start = datetime.strptime(key, KEY_FORMAT).replace(tzinfo=zone)
    except ValueError:
        start = None
    is_hour = settings.interval == "hour"
    if start is None or (start.minute, start.second) != (0, 0) or not (is_hour or start.hour == 0):
        raise UsageError(f"{key!r} is not the beginning of {_a(settings)}", place="partition key", remedy=remedy)
    end = start + (timedelta(hours=1) if is_hour else timedelta(days=1))  # of the wall clock: a day may have 23 hours
    return key, _intervals().Interval(start.astimezone(UTC), end.astimezone(UTC))


def _a(settings: AirflowConfig) -> str:
    return "an hour" if settings.interval == "hour" else f"a day in {settings.timezone}"


class TowpathIntervalSensor(BaseSensorOperator):
    """Waits until the interval of its run is complete in the lake: by the source's clock the store has all of its
    transactions, and all are applied. It keeps no slot while it waits.

    ``conf_file``: the path of ``DEST.yaml`` on the worker (templated). An interval that can never be complete fails the
    task at once, with the reason. The first scheduled intervals, from before capture was started, are skipped.
    """

    template_fields = ("conf_file",)
    ui_color = DestinationOperator.ui_color

    def __init__(self, *, conf_file: str, **kwargs: Any) -> None:
        defaults = {"mode": "reschedule", "poke_interval": 30, "exponential_backoff": True, "max_wait": 300}
        for name, value in defaults.items():
            kwargs.setdefault(name, value)
        super().__init__(**kwargs)
        self.conf_file = conf_file
        self._reason = ""

    def execute(self, context: Context) -> Any:
        """Raises AirflowSensorTimeout after ``timeout`` seconds, with what was missing then."""
        try:
            return super().execute(context)
        except AirflowSensorTimeout as error:
            raise AirflowSensorTimeout(f"{self._reason} ({error})") from error

    def poke(self, context: Context) -> bool:
        """Raises CutOffError, as a failure without retries."""
        with xcom.airflow_errors():
            config = read_config(self.conf_file)
            _, interval = interval_of(config.airflow, context)
            if context["dag_run"].run_type == "scheduled" and _intervals().begins_before_capture(config, interval):
                raise AirflowSkipException(f"Capture was started for the first time after {interval.start}.")
            try:
                seq_range = _intervals().range_of(config, interval)
            except (StoreIncompleteError, LakeBehindError) as error:
                self._reason = str(error)
                self.log.info("Not complete yet: %s", error)
                return False
        self.log.info("Complete: seq %d (exclusive) to %d.", seq_range.after_seq, seq_range.last_seq)
        return True


class TowpathPublishOperator(lineage.LineageMixin, DestinationOperator):
    """Reads the interval of its run from the store, and emits an event of each table that has all of its changes.

    An interval that was published before keeps its transactions. A task that is run again publishes it again; if tables
    were left out, it publishes only these. Returns the interval's contents as JSON.
    """

    operator_extra_links = (links.TowpathTableLink(),)

    def __init__(self, *, destination: str, **kwargs: Any) -> None:
        asset = destination_asset(destination)
        kwargs.setdefault("outlets", [asset, alias_of(destination)])
        kwargs.setdefault("inlets", [asset])
        super().__init__(**kwargs)
        self.asset = asset
        self.alias = alias_of(destination)

    def execute(self, context: Context) -> dict[str, Any]:
        """Raises StoreIncompleteError and LakeBehindError (retried), CutOffError if the store no longer has the
        interval's transactions."""
        with xcom.airflow_errors():
            config = self._config()
            key, interval = interval_of(config.airflow, context)
            before = _Published.read(context["inlet_events"][self.asset], config.airflow, key, interval)
            seq_range = _intervals().range_of(config, interval, after_seq=before.after_seq, last_seq=before.last_seq)
            content = _intervals().content_of(config, seq_range)
        chosen = {table.table for table in content.tables}
        if before.left_out:
            chosen &= before.left_out
            self.log.info("Published before, without %s.", ", ".join(sorted(before.left_out)))
        events = context["outlet_events"]
        published = []
        for table in content.tables:
            if table.table not in chosen:
                continue
            described = _described(config, interval, content, table)
            events[self.alias].add(table_asset(config.name, table.table), extra=described.as_extra())
            published.append(lineage.ChangedTable(table.table, None, table.delta_version))
        self._tell_lineage(lambda: lineage.published(config, published))
        most = links.most_changed((table.table, table.rows) for table in content.tables)
        if most is not None:
            self.link_targets[links.TABLE] = links.table_address(config, most)
        events[self.asset].extra = {
            "destination": config.name,
            "start": interval.start.isoformat(),
            "end": interval.end.isoformat(),
            "after_seq": seq_range.after_seq,
            "last_seq": seq_range.last_seq,
            "gtid": content.gtid,
            "batches": content.batches,
            "rows": sum(table.rows for table in content.tables),
            "left_out": sorted(content.left_out),
        }
        self.log.info(
            "Interval %s: %d rows in %d of %d tables.",
            interval,
            sum(table.rows for table in content.tables),
            sum(1 for table in content.tables if table.rows),
            len(content.tables),
        )
        self.log.info("Emits %d events of tables with the partition key %s.", len(published), key)
        return {**asdict(content), "interval": str(interval)}


class TowpathLeftOutOperator(DestinationOperator):
    """Fails if the interval was published without some tables, so that nobody takes it for complete."""

    def __init__(self, *, publish_task_id: str = "publish", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.publish_task_id = publish_task_id

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException."""
        published = context["ti"].xcom_pull(task_ids=self.publish_task_id)
        if published is None:
            raise AirflowFailException(f"{self.publish_task_id} has returned nothing: clear it.")
        if published["left_out"]:
            reasons = "; ".join(f"{table}: {reason}" for table, reason in sorted(published["left_out"].items()))
            raise AirflowFailException(
                f"The interval was published without these tables. {reasons}. Bring them back (`cdc status` says how), "
                f"then clear {self.publish_task_id}: it publishes the interval of these tables."
            )


def alias_of(destination: str) -> AssetAlias:
    """Returns the alias through which a run emits the events of tables, which are not known when DAGs are parsed."""
    return AssetAlias(f"towpath_{destination}_tables")


class _Published:
    """The seqs of an interval and its neighbours, as earlier events have them."""

    def __init__(self) -> None:
        self.after_seq: int | None = None
        self.last_seq: int | None = None
        self.left_out: set[str] = set()

    @classmethod
    def read(cls, events: Any, settings: AirflowConfig, key: str, interval: Interval) -> _Published:
        """Reads the newest events of the destination's asset. An interval keeps the seqs with which it was published;
        a new one begins where the interval before it ended, and ends where the one after it began."""
        newest = list(events.ascending(False).limit(_EVENTS))
        published, same, earlier, later = cls(), None, None, None
        for event in newest:
            extra = event.extra or {}
            if event.partition_key == key:
                same = same or extra
            elif extra.get("end") == interval.start.isoformat():
                earlier = earlier or extra
            elif extra.get("start") == interval.end.isoformat():
                later = later or extra
        if same is not None:
            published.after_seq, published.last_seq = same["after_seq"], same["last_seq"]
            published.left_out = set(same["left_out"])
        else:
            published.after_seq = None if earlier is None else earlier["last_seq"]
            published.last_seq = None if later is None else later["after_seq"]
        return published


def _described(
    config: DestinationConfig, interval: Interval, content: IntervalContent, table_content: TableContent
) -> TableInterval:
    span = content.range
    assert table_content.delta_version is not None
    assert table_content.applied_seq is not None
    return TableInterval(
        destination=config.name,
        table=table_content.table,
        path=hide_password(config.table_path(table_content.table)),
        start=interval.start,
        end=interval.end,
        after_seq=span.after_seq,
        last_seq=span.last_seq,
        gtid=content.gtid,
        file=content.file,
        pos=content.pos,
        batch=content.batches[-1] if content.batches else None,
        batches=tuple(content.batches),
        delta_version=table_content.delta_version,
        applied_seq=table_content.applied_seq,
        rows=table_content.rows,
        transactions=table_content.transactions,
        ddl=table_content.ddl,
    )
