"""Events of Delta tables: one for each table that a run of apply, of a snapshot or of a replay has changed.

Airflow stores the events of a task together with its success, so the try of a task that succeeds emits them and no
other does. Which batches were told is read from the newest event of :func:`~cdc.airflow.assets.changes_asset`: what a
run has acked before it failed is told by the next one (``docs/decisions/0151``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from airflow.sdk import Asset, AssetAlias, BaseOperator

from cdc.airflow.assets import changes_asset, delta_asset
from cdc.base.errors import DamagedError, UsageError
from cdc.base.log import hide_password
from cdc.base.run_identity import RunIdentity, current_run
from cdc.binlog.gtids import Flavor, parse_state
from cdc.lake import pipeline

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest, TableResult
    from cdc.config import DestinationConfig

LoadKind = Literal["snapshot", "replay"]
CHANGED = AssetAlias("towpath_changed")
"""The alias through which runs emit the events: the tables are not known when DAGs are parsed."""
_MOST_UNTOLD = 100
"""Batches without changes of tables after which an event says so, so that their manifests are not read again."""


@dataclass(frozen=True)
class TableChange:
    """A change of a Delta table by a run, as the event of the table's asset describes it."""

    destination: str
    table: str
    """``db.table`` at the source."""
    path: str
    """The path or URI of the Delta table."""
    kind: Literal["apply", "snapshot", "replay"]
    delta_version: int
    """The version of the last commit."""
    after_seq: int
    """The changes are those with ``after_seq`` < seq ≤ ``last_seq``."""
    last_seq: int
    rows: int
    """Rows that were inserted, updated or deleted; of a snapshot or a replay, rows that were loaded."""
    inserted: int | None = None
    """None for a snapshot and a replay, which replace rows, and so are the following ones."""
    updated: int | None = None
    deleted: int | None = None
    first_batch: int | None = None
    last_batch: int | None = None
    gtid: str | None = None
    """The GTID of the last transaction; None if it has none."""
    gtids: str | None = None
    """All GTIDs of the source up to ``last_seq``, as ``gtid_executed`` or ``gtid_binlog_state`` prints them; None of a
    snapshot and a replay, and if they are not known."""
    first_commit_time: str | None = None
    """When the first transaction was committed at the source, ISO 8601, UTC."""
    last_commit_time: str | None = None
    schema_changed: bool | None = None
    """Whether the source's table got other columns or another primary key."""

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any]) -> Self:
        """Returns the change that the ``extra`` of an event describes. Raises UsageError if it describes none."""
        try:
            given = [field.name for field in fields(cls) if field.default is MISSING or field.name in extra]
            return cls(**{name: extra[name] for name in given})
        except KeyError as error:
            raise UsageError(f"this is not an event of a table's change: it has no {error}") from None

    @classmethod
    def of(cls, context: Mapping[str, Any], asset: Asset) -> list[Self]:
        """Returns the changes that have started a run of a consumer, oldest first: several if they came while Airflow
        was busy, none if the run was started otherwise. ``context``: the task's."""
        events = sorted(context["triggering_asset_events"].get(asset, ()), key=lambda event: event.timestamp)
        return [cls.from_extra(event.extra) for event in events]

    def includes(self, gtid: str) -> bool | None:
        """Whether the table has what a transaction, or each of a set, has changed in it; None if the event does not
        tell. ``gtid``: as the source prints it. Raises UsageError for another text."""
        if self.gtids is None:
            return None
        flavor: Flavor = "mysql" if ":" in self.gtids else "mariadb"
        try:
            asked = parse_state(gtid, flavor)
        except DamagedError as error:
            raise UsageError(str(error)) from None
        if not asked:
            raise UsageError(f"{gtid!r} names no transaction")
        return asked <= parse_state(self.gtids, flavor)


def telling_batches(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of an operator that calls :func:`tell_batches`, without ``destination``. If that is absent,
    the name is that of the configuration file; a template hides it, and then the task emits no events."""
    others = {name: value for name, value in arguments.items() if name != "destination"}
    name = arguments.get("destination") or Path(arguments["conf_file"]).stem
    return others if "{{" in name else _with_events(others, changes_asset(name))


def telling_loads(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of an operator that calls :func:`tell_loads`."""
    return _with_events(arguments, CHANGED)


def _with_events(arguments: Mapping[str, Any], inlet: Asset | AssetAlias) -> dict[str, Any]:
    """Adds an inlet, to ask for earlier events, and the outlet for new ones to those that the DAG gives the task."""
    given = {name: arguments.get(name) or [] for name in ("inlets", "outlets")}
    inlets, outlets = (value if isinstance(value, list) else [value] for value in given.values())
    return {**arguments, "inlets": [*inlets, inlet], "outlets": [*outlets, CHANGED]}


def tell_batches(
    task: BaseOperator, config: DestinationConfig, context: Mapping[str, Any], first_batch: int | None
) -> list[TableChange]:
    """Emits an event for each table that acked batches have changed: those after the last one that was told.

    ``first_batch``: the batch with which this run began; None if only what earlier runs left is told. Without an
    earlier event, the events begin with it. They also do if it was told before: this task was cleared. Returns the
    changes.
    """
    asset = changes_asset(config.name)
    if not config.airflow.table_events or asset not in task.inlets:
        return []
    told = _told_batch(context, asset)
    if told is not None:
        after_batch = told
    elif first_batch is not None:
        after_batch = first_batch - 1
    else:
        return []
    manifests = pipeline.acked_manifests(config, after_batch - 1)
    if told is not None and not manifests:
        after_batch = 0  # the meta does not know the batch that was told last: it has begun anew
        manifests = pipeline.acked_manifests(config, after_batch - 1)
    elif first_batch is not None and after_batch >= first_batch:
        after_batch = first_batch - 1
        manifests = pipeline.acked_manifests(config, after_batch - 1)
    before = [manifest for manifest in manifests if manifest.batch <= after_batch]
    batches = [manifest for manifest in manifests if manifest.batch > after_batch]
    if not batches:
        return []
    changes = _changes_of(config, batches, before[-1] if before else None)
    events = context["outlet_events"][CHANGED]
    for change in changes:
        events.add(delta_asset(change.path), extra=asdict(change))
    if changes or len(batches) > _MOST_UNTOLD:
        events.add(
            asset,
            extra={  # without lists and objects, which Airflow 3.0 refuses in events of an alias
                "destination": config.name,
                "first_batch": batches[0].batch,
                "last_batch": batches[-1].batch,
                "after_seq": batches[0].after_seq,
                "last_seq": batches[-1].last_seq,
                "tables": ", ".join(change.table for change in changes),
            },
        )
    return changes


def tell_loads(
    task: BaseOperator,
    config: DestinationConfig,
    context: Mapping[str, Any],
    kind: LoadKind,
    results: Sequence[Any],
    wanted: Sequence[str] | None,
) -> list[TableChange]:
    """Emits an event for each table that this run of a task has loaded.

    ``results``: those of this try. An earlier try of the run may have loaded others of the ``wanted`` tables (None for
    all) before it was killed; the commits in the tables' own logs tell it. Returns the changes.
    """
    if not config.airflow.table_events or CHANGED not in task.inlets:
        return []
    rows = {result.table: result.rows for result in results}
    paths = {result.table: path for result in results if (path := getattr(result, "path", None))}
    repeated = getattr(context["ti"], "try_number", 1) > 1
    told: set[tuple[str, int]] = set()
    tables = list(rows)
    if repeated:
        told = _told_versions(context)
        tables += pipeline.recorded_tables(config) if wanted is None else wanted
    changes = []
    for table in dict.fromkeys(tables):
        path = paths.get(table) or config.table_path(table)
        change = _load_of(config, table, path, kind, rows.get(table))
        if change is not None and (change.path, change.delta_version) not in told:
            changes.append(change)
    events = context["outlet_events"][CHANGED]
    for change in changes:
        events.add(delta_asset(change.path), extra=asdict(change))
    return changes


# --- what was told before


def _newest(events: Any, most: int | None) -> list[Any]:
    """Returns events from Airflow, newest first."""
    if hasattr(events, "ascending"):  # Airflow 3.1 and later
        events = events.ascending(False)
        return list(events if most is None else events.limit(most))
    return sorted(events, key=lambda event: event.timestamp, reverse=True)[:most]


def _told_batch(context: Mapping[str, Any], asset: Asset) -> int | None:
    """Returns the last batch that an event of the destination's asset tells; None if there is no event."""
    newest = _newest(context["inlet_events"][asset], 1)
    return int(newest[0].extra["last_batch"]) if newest else None


def _told_versions(context: Mapping[str, Any]) -> set[tuple[str, int]]:
    """Returns paths and versions of tables of which this DAG run has emitted events already: its task was cleared."""
    ti = context["ti"]
    return {
        (event.extra["path"], event.extra["delta_version"])
        for event in _newest(context["inlet_events"][CHANGED], None)
        if (event.source_dag_id, event.source_run_id) == (ti.dag_id, ti.run_id) and "delta_version" in event.extra
    }


# --- what has changed


def _changes_of(config: DestinationConfig, batches: Sequence[Manifest], before: Manifest | None) -> list[TableChange]:
    """Returns the changes of batches by table, in the order of the tables' names."""
    changed: dict[str, list[tuple[Manifest, TableResult]]] = {}
    altered: set[str] = set()
    for manifest in batches:
        assert manifest.acked is not None
        tables_altered = pipeline.altered_tables(before, manifest) if manifest.ddl else set()
        before = manifest
        for result in manifest.acked.tables:
            has_rows = result.inserted or result.updated or result.deleted
            if result.delta_version is not None and (has_rows or result.table in tables_altered):
                changed.setdefault(result.table, []).append((manifest, result))
        altered |= tables_altered
    return [_change_of(config, table, changed[table], table in altered) for table in sorted(changed)]


def _change_of(
    config: DestinationConfig, table: str, parts: Sequence[tuple[Manifest, TableResult]], altered: bool
) -> TableChange:
    first, last = parts[0][0], parts[-1][0]
    results = [result for _, result in parts]
    inserted, updated, deleted = (sum(getattr(r, name) for r in results) for name in ("inserted", "updated", "deleted"))
    return TableChange(
        destination=config.name,
        table=table,
        path=hide_password(config.table_path(table)),
        kind="apply",
        delta_version=max(result.delta_version or 0 for result in results),
        after_seq=first.after_seq,
        last_seq=last.last_seq,
        rows=inserted + updated + deleted,
        inserted=inserted,
        updated=updated,
        deleted=deleted,
        first_batch=first.batch,
        last_batch=last.batch,
        gtid=last.positions.last.gtid,
        gtids=last.gtids,
        first_commit_time=first.positions.first.time,
        last_commit_time=last.positions.last.time,
        schema_changed=altered,
    )


def _load_of(config: DestinationConfig, table: str, path: str, kind: LoadKind, rows: int | None) -> TableChange | None:
    """Returns what this run of a task has loaded into a table; None if it has made no commit there."""
    mine = _without_try(current_run())
    commits = {
        version: entry
        for version, entry in pipeline.ledger(config, table, path)
        if _without_try(RunIdentity.of_document(entry.get("run"))) == mine
    }
    if not commits:
        return None
    last = commits[max(commits)]
    return TableChange(
        destination=config.name,
        table=table,
        path=hide_password(path),
        kind=kind,
        delta_version=max(commits),
        after_seq=min(int(entry["first_seq"]) for entry in commits.values()),
        last_seq=int(last["last_seq"]),
        rows=sum(int(entry.get("source_rows") or 0) for entry in commits.values()) if rows is None else rows,
        gtid=last.get("gtid"),
    )


def _without_try(run: RunIdentity | None) -> tuple[str | None, ...]:
    return () if run is None else (run.dag_id, run.run_id, run.task_id)
