"""Delta tables: creates them empty, adds columns, lets them follow the configuration, and refuses tables of other
destinations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import types as t

from cdc.base.errors import CdcError, IdentityError, TargetError
from cdc.base.targets import (
    DESTINATION_PROPERTY,
    GENERATION_PROPERTY,
    NEEDS_MAPPING,
    REBUILD_PROPERTY,
    ROUTED,
    SHARED_PROPERTY,
    SINCE_PROPERTY,
    SOURCE_COLUMN,
    application_id,
    is_routed,
    members_of,
    stored_name,
)
from cdc.binlog.positions import split_seq
from cdc.lake.delta.layout import Layout, clustering_of, layout_of
from cdc.lake.delta.log import KEPT_TRANSACTIONS, TRANSACTION_RETENTION, DeltaState, clear_unborn, read_state
from cdc.lake.delta.sql import literal, quote
from cdc.lake.delta.tracked import SCHEMA_PROPERTY, SchemaRecord
from cdc.lake.rows.columns import SourceColumns, TablePolicies
from cdc.lake.runtime.failures import explain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.batches.manifest import Manifest
    from cdc.config import ApplyConfig, DestinationConfig

MODE_PROPERTY = "towpath.mode"
UUID_PROPERTY = "towpath.server_uuid"
EPOCH_PROPERTY = "towpath.epoch"
COLUMNS_PROPERTY = "towpath.columns"
"""The policies that were applied to the columns, as JSON: {source's name in lower case: label}. In a shared table a
label may be ``{"was": label, "now": label, "rebuild": id}``, since its rows and properties do not change in one commit:
the second one counts once that rebuild has committed."""

LARGE_PROPERTY = "towpath.large_values"
"""``true`` once the table has had values of many megabytes. A merge may have to rewrite them together with neighbouring
rows; see :mod:`cdc.lake.apply.large_values`."""

BEFORE = "_before"
CASCADED_DELETE, CASCADED_UPDATE = "cascade_delete", "cascade_update"
"""Words of ``_op`` in mode ``append``."""
PRESENT = ("insert", "update", CASCADED_UPDATE, "snapshot")
"""Words of ``_op`` whose rows were in the table after the change."""
GONE = ("update", "delete", CASCADED_UPDATE, CASCADED_DELETE)
"""Words of ``_op`` whose old rows were in the table before the change, and not after it."""
_SOURCE = t.StructField(SOURCE_COLUMN, t.StringType())
_APPEND = (
    t.StructField("_op", t.StringType()),
    t.StructField("_seq", t.LongType()),
    t.StructField("_row", t.LongType()),
    t.StructField("_commit_time", t.TimestampType()),
    t.StructField("_gtid", t.StringType()),
)
_SOFT_DELETE = (
    t.StructField("_deleted", t.BooleanType()),
    t.StructField("_commit_time", t.TimestampType()),
    t.StructField("_seq", t.LongType()),
)
_SCD2 = (
    t.StructField("_valid_from", t.TimestampType()),
    t.StructField("_valid_to", t.TimestampType()),
    t.StructField("_current", t.BooleanType()),
    t.StructField("_seq", t.LongType()),
)
_STATS_COLUMNS = 32
"""Columns for which Delta keeps statistics by default; the columns that prune files must be among them."""


@dataclass(frozen=True)
class Target:
    """The Delta table of a source table: path, settings and policies."""

    table: str
    path: str
    apply: ApplyConfig
    destination: str
    policies: TablePolicies
    lake_name: str = ""
    """The ``db.table`` of the Delta table, if it is another one than that of the source table."""

    @property
    def is_routed(self) -> bool:
        """Whether several source tables fill the Delta table, each its own rows."""
        return self.lake_name not in ("", self.table)

    @property
    def member(self) -> str:
        """The name of the rows in a shared table that are written here, and of their records among its properties."""
        return self.table if self.is_routed else self.destination

    @property
    def sql(self) -> str:
        """The table in Spark's SQL."""
        return f"delta.{quote(self.path)}"

    def state(self) -> DeltaState | None:
        """Returns the table's state; None if there is no table, or if it is shared and this member has not joined
        it yet. Raises TargetError for a table with one owner where the configuration says that it is shared, and the
        other way round, and for a routed table of another destination; and as :func:`cdc.lake.delta.log.read_state`."""
        state = self.state_of_all()
        return state if state is None or state.is_joined or not state.is_shared else None

    def state_of_all(self) -> DeltaState | None:
        """Returns the state of a shared table that this member may not have joined; else as :meth:`state`."""
        state = read_state(self.path, self.destination, self.table)
        if state is not None and state.stored.get(SHARED_PROPERTY) != self._sharing:
            raise _shared_otherwise(self, state)
        owner = None if state is None or not self.is_routed else state.stored.get(DESTINATION_PROPERTY)
        if owner is not None and owner != self.destination:
            raise _of_another(self, owner)
        return state

    def columns_of_all(self) -> str | None:
        """Returns the columns of a shared table as JSON; None if there is no such table, or if it cannot be read."""
        try:
            state = self.state_of_all() if self.apply.shared else None
        except CdcError:
            return None
        return None if state is None else state.schema_json

    @property
    def own_rows(self) -> str | None:
        """SQL condition that holds for the member's rows of a shared table; None if all rows are its own."""
        return f"{SOURCE_COLUMN} = {literal(self.member)}" if self.apply.shared else None

    @property
    def present_rows(self) -> str | None:
        """SQL condition that holds for the rows that the source has at the table's position; None if all rows are such,
        and for ``append``, where no condition on a row tells them."""
        return {"soft_delete": "NOT _deleted", "scd2": "_valid_to IS NULL"}.get(self.apply.mode)

    def sql_properties(self, properties: Mapping[str, str]) -> str:
        """Returns properties of the table, as :attr:`DeltaState.properties` names them, as the list inside
        ``TBLPROPERTIES (…)``."""
        return sql_properties({self.stored_name(name): value for name, value in properties.items()})

    def stored_name(self, name: str) -> str:
        """Returns the name under which the table stores a property."""
        return stored_name(name, self.member, shared=self.apply.shared)

    @property
    def ownership(self) -> dict[str, str]:
        """The properties that tell whose table it is. Members of a routed table all belong to one destination."""
        owner = {} if self._sharing == "true" else {DESTINATION_PROPERTY: self.destination}
        return owner if self._sharing is None else {SHARED_PROPERTY: self._sharing, **owner}

    @property
    def _sharing(self) -> str | None:
        """The value of the property ``towpath.shared``; None for a table with one owner."""
        return ROUTED if self.is_routed else "true" if self.apply.shared else None

    def schema(self, columns: list[t.StructField]) -> t.StructType:
        """Returns all columns of the Delta table."""
        return delta_schema(columns, self.apply.mode, shared=self.apply.shared)

    def application_id(self, state: DeltaState) -> str:
        return application_id(self.destination, self.table, state.generation)


def target_of(config: DestinationConfig, table: str) -> Target:
    """Returns path, settings and policies of ``db.table``. Raises ConfigError if the key of ``hash`` is missing."""
    apply, override = config.table_apply(table), config.tables.override(table)
    policies = TablePolicies.of(table, apply, (override.columns or ()) if override is not None else ())
    return Target(table, config.table_path(table), apply, config.name, policies, config.tables.lake_name(table))


def schema_of(state: DeltaState) -> t.StructType:
    """Returns the table's schema for Spark."""
    return t.StructType.fromJson(json.loads(state.schema_json))


def delta_schema(columns: list[t.StructField], mode: str, *, shared: bool = False) -> t.StructType:
    """Returns all columns of the Delta table in this mode."""
    more = [_SOURCE] if shared else []
    if mode == "append":
        return t.StructType([*columns, *_APPEND, t.StructField(BEFORE, t.StructType(list(columns))), *more])
    return t.StructType([*columns, *{"soft_delete": _SOFT_DELETE, "scd2": _SCD2}.get(mode, ()), *more])


@dataclass(frozen=True)
class TableOrigin:
    """The source of a new table or generation, and the seq up to which it is complete from the beginning."""

    server_uuid: str
    epoch: int
    since_seq: int
    generation: int = 0
    record: SchemaRecord | None = None
    """The source's schema; None if it is not known."""


def properties_of(
    target: Target, columns: SourceColumns, primary: tuple[str, ...], origin: TableOrigin
) -> dict[str, str]:
    """Returns the properties of a new table, or of a new generation of one. Raises ConfigError if a policy leaves no
    key."""
    mode, fields = target.apply.mode, columns.fields
    # Configured keys that the table lacks are refused once there are rows, with a message about them.
    keys = () if mode == "append" else columns.keys([k for k in target.apply.keys or primary if columns.has(k)])
    properties = {
        **target.ownership,
        GENERATION_PROPERTY: str(origin.generation),
        MODE_PROPERTY: mode,
        UUID_PROPERTY: origin.server_uuid,
        EPOCH_PROPERTY: str(origin.epoch),
        SINCE_PROPERTY: str(origin.since_seq),
        TRANSACTION_RETENTION: KEPT_TRANSACTIONS,
    }
    if columns.labels:
        properties[COLUMNS_PROPERTY] = labels_json(columns.labels)
    properties |= feature_properties(f.dataType for f in fields)
    if any(NEEDS_MAPPING & set(f.name) for f in fields):
        properties["delta.columnMapping.mode"] = "name"
    layout = layout_of(target, target.schema(fields).fields)
    properties |= {**target.apply.properties, **layout.properties}
    needed = max((_index(fields, k) + 1 for k in (*keys, *(layout.cluster_by or ()))), default=0)
    if target.apply.shared:
        needed = len(target.schema(fields))
    elif mode != "upsert":  # up to _seq, which their statements or their readers look up
        needed = len(fields) + {"soft_delete": len(_SOFT_DELETE), "append": 2, "scd2": len(_SCD2)}[mode]
    if needed > _STATS_COLUMNS:
        properties["delta.dataSkippingNumIndexedCols"] = str(needed)
    if origin.record is not None:
        properties[SCHEMA_PROPERTY] = origin.record.to_json()
    return properties


def feature_properties(types: Iterable[t.DataType]) -> dict[str, str]:
    """Returns the properties that switch on the table features which columns of these types need. Delta switches them
    on by itself in a new table, and refuses the columns in a table that is there."""
    if any(isinstance(kind, t.TimestampNTZType) for kind in types):
        return {"delta.feature.timestampNtz": "supported"}
    return {}


def sql_properties(properties: dict[str, str]) -> str:
    """Returns properties as the list inside ``TBLPROPERTIES (…)``."""
    return ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())


def create_table(
    spark: SparkSession, target: Target, columns: SourceColumns, properties: Mapping[str, str]
) -> DeltaState:
    """Creates the empty Delta table with these columns and properties, and returns its state. A table that another
    process creates meanwhile is returned as well; if another destination has created a shared table, this one has not
    joined it yet.

    Raises TargetError if the table cannot be created.
    """
    whole = target.schema(columns.fields)
    clause = layout_of(target, whole.fields).clause
    listed_columns = ", ".join(f"{quote(f.name)} {ddl_type(f.dataType)}" for f in whole.fields)
    listed = target.sql_properties(properties)
    clear_unborn(target.path)
    try:
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {target.sql} ({listed_columns}) USING delta{clause} TBLPROPERTIES ({listed})"
        )
    except Exception as error:
        state = target.state_of_all()
        if state is not None:
            return state

        raise explain(error, target.table) from error
    state = target.state_of_all()
    if state is None:
        raise TargetError(
            "the Delta table is missing right after it was created",
            place=f"table {target.table} at {target.path}",
            remedy="Check that this process and Spark see the same files under apply.target, and that the table has no "
            "empty folder _delta_log: after a kill in an object store, remove that by hand.",
        )
    return state


def _index(fields: list[t.StructField], name: str) -> int:
    return next((i for i, f in enumerate(fields) if f.name.lower() == name.lower()), 0)


def ddl_type(kind: t.DataType) -> str:
    """Returns a type for CREATE TABLE and ALTER TABLE, with quoted names of struct fields."""
    if isinstance(kind, t.StructType):
        return "STRUCT<" + ", ".join(f"{quote(f.name)}: {ddl_type(f.dataType)}" for f in kind.fields) + ">"
    return kind.simpleString()


def _shared_otherwise(target: Target, state: DeltaState) -> TargetError:
    """Returns the error for a table that is shared, or has one owner, against the configuration."""
    place = f"table {target.table} at {target.path}"
    if is_routed(state.stored) or target.is_routed:
        return _routed_otherwise(target, state)
    if state.is_shared:
        members = ", ".join(members_of(state.stored)) or "no destination yet"
        return TargetError(
            f"the Delta table is shared by several destinations ({members}), and apply.shared is false",
            place=place,
            remedy="Set apply.shared: true to write into it, or give this destination another apply.target.",
        )
    owner = state.properties.get(DESTINATION_PROPERTY)
    whose = "was not made by Towpath" if owner is None else f"belongs to the destination {owner!r} alone"
    return TargetError(
        f"the Delta table {whose}, and apply.shared is true",
        place=place,
        remedy="A table with one owner cannot become a shared one. Move it away, and load the table with `cdc snapshot "
        f"{target.destination} {target.table}`; or set apply.shared: false; or give this destination another "
        "apply.target.",
    )


def _routed_otherwise(target: Target, state: DeltaState) -> TargetError:
    """Returns the error for a table with the rows of several source tables, or of one, against ``tables.route``."""
    place = f"table {target.table} at {target.path}"
    if target.is_routed:
        return TargetError(
            f"the Delta table was not made for several source tables, and tables.route leads {target.table} there",
            place=place,
            remedy="Move it away, or lead the table elsewhere; then load the table with `cdc snapshot "
            f"{target.destination} {target.table}`.",
        )
    members = members_of(state.stored)
    listed = ", ".join(members[:3]) + (f" and {len(members) - 3} more" if len(members) > 3 else "")
    return TargetError(
        f"the Delta table has the rows of several source tables ({listed or 'none yet'}), and tables.route leads no "
        "table there",
        place=place,
        remedy="Write the expression into tables.route again, or move the Delta table away.",
    )


def _of_another(target: Target, owner: str | None) -> TargetError:
    whose = "was not made by Towpath" if owner is None else f"belongs to the destination {owner!r}"
    return TargetError(
        f"the Delta table {whose}",
        place=f"table {target.table} at {target.path}",
        remedy=f"Take it over (`cdc adopt {target.destination} {target.table} --from …`), move it away, or give "
        "this destination another apply.target."
        if owner is None and not target.is_routed
        else "Move it away, or give this destination another apply.target.",
    )


def require_owner(state: DeltaState, target: Target) -> None:
    """Raises TargetError for a table of another owner."""
    owner = state.properties.get(DESTINATION_PROPERTY)
    if owner != target.destination:
        raise _of_another(target, owner)


def require_ownership(state: DeltaState, target: Target, manifest: Manifest) -> None:
    """Raises TargetError for a table of another owner or mode, IdentityError for a batch of another source."""
    where = f"table {target.table} at {target.path}"
    require_owner(state, target)
    mode = state.properties.get(MODE_PROPERTY, target.apply.mode)
    if mode != target.apply.mode:
        raise TargetError(
            f"the Delta table was created in mode {mode}, the configuration says {target.apply.mode}",
            place=where,
            remedy=f"Set the mode back to {mode}, which all rows of the shared table have."
            if target.apply.shared
            else f"Rebuild it in the new mode (`cdc replay {target.destination} {target.table}`), or set the mode "
            f"back to {mode}.",
        )
    epoch, uuid = split_seq(state.applied_seq).epoch, None
    # A former member of the same name may have had another source.
    ledger = state.entries if state.is_shared else state.ledger
    if ledger:
        epoch = max(epoch, int(ledger[0][1].get("epoch", 0)))
        uuid = ledger[0][1].get("server_uuid")
    else:
        begun = int(state.properties.get(EPOCH_PROPERTY, "0"))
        if begun >= epoch:  # the table has no later epoch, in which it may have another server
            epoch, uuid = begun, state.properties.get(UUID_PROPERTY)
    if manifest.epoch < epoch:
        raise IdentityError(
            f"the batch is of epoch {manifest.epoch}, but the table has changes of epoch {epoch} already",
            place=where,
            remedy="Apply the store that holds the later history, or rebuild the table.",
        )
    if manifest.epoch == epoch and uuid and manifest.server_uuid and uuid != manifest.server_uuid:
        raise IdentityError(
            f"the batch comes from server {manifest.server_uuid}, but the table from server {uuid}",
            place=where,
            remedy="Give the other server a destination and a target of its own.",
        )


def has_loaded(state: DeltaState, rebuild: str) -> bool:
    """Whether a snapshot, a replay or a remask has given the destination's rows of a shared table their present
    generation."""
    return state.properties.get(REBUILD_PROPERTY) == rebuild and state.applied_seq > 0


def recorded_policies(state: DeltaState) -> dict[str, str]:
    """Returns the policies that were applied to the table's columns so far; see :data:`COLUMNS_PROPERTY`."""
    recorded: dict[str, str | dict[str, str]] = json.loads(state.properties.get(COLUMNS_PROPERTY, "{}"))
    policies = {}
    for name, label in recorded.items():
        if not isinstance(label, str):
            label = label["now" if has_loaded(state, label["rebuild"]) else "was"]
        if label:
            policies[name] = label
    return policies


def passing_labels_json(state: DeltaState, labels: Mapping[str, str], names: Iterable[str], rebuild: str) -> str:
    """Returns the value of :data:`COLUMNS_PROPERTY` for a shared table whose own rows a rebuild is about to replace by
    rows that have these labels: a policy that changes counts from the commit of the rebuild on."""
    recorded = recorded_policies(state)
    passing: dict[str, str | dict[str, str]] = {**recorded}
    for name in map(str.lower, names):
        was, now = recorded.get(name, ""), labels.get(name, "")
        if was != now:
            passing[name] = {"was": was, "now": now, "rebuild": rebuild}
    return json.dumps(passing, ensure_ascii=False, sort_keys=True)


def labels_json(labels: dict[str, str]) -> str:
    """Returns the value of :data:`COLUMNS_PROPERTY`."""
    return json.dumps(labels, ensure_ascii=False, sort_keys=True)


class PolicyChange(NamedTuple):
    """A column that is in the lake by another policy than the configuration says."""

    column: str
    """The source's name."""
    was: str
    """The policy of the column's values in the lake, in words (:func:`cdc.decode.policies.policy_label`); empty: they
    are as they were at the source."""
    now: str
    """That of the configuration."""


def policy_changes(
    state: DeltaState, target: Target, columns: SourceColumns, names: Iterable[str]
) -> list[PolicyChange]:
    """Returns the columns that were written, or left out, by another policy than the configuration has now. ``names``:
    the source's column names."""
    recorded = recorded_policies(state)
    lake_names = {f.name.lower() for f in schema_of(state).fields}
    changes = []
    for name in names:
        was, now = recorded.get(name.lower()), columns.labels.get(name.lower(), "")
        if was is None:
            in_lake = {name.lower(), (target.policies.lake_name(name) or name).lower()}
            was = "" if in_lake & lake_names else now  # a column that is not there yet may have any policy
        if was != now:
            changes.append(PolicyChange(name, was, now))
    return changes


def require_same_policies(state: DeltaState, target: Target, columns: SourceColumns, names: Iterable[str]) -> None:
    """Raises TargetError if a column was written, or left out, by another policy than the configuration has now: its
    old and new values would not be comparable. ``names``: the source's column names."""
    for name, was, now in policy_changes(state, target, columns, names):
        raise TargetError(
            f"the column {name} was written by the policy {was or 'keep'} so far, and the configuration now says "
            f"{now or 'keep'}",
            place=f"table {target.table} at {target.path}",
            remedy=f"Run `cdc remask {target.destination} {target.table}`, which gives the values in the lake the new "
            "policy; or set the policy (columns, types, the key) back.",
        )


def record_policies(
    spark: SparkSession, target: Target, state: DeltaState, columns: SourceColumns, names: Iterable[str]
) -> DeltaState:
    """Records the policies of these source columns in the table, and returns its state.

    Call it before new columns are added: a table that has a column without its record would look as if the policy had
    changed.
    """
    recorded = recorded_policies(state)
    labels = {name.lower(): columns.labels[name.lower()] for name in names if name.lower() in columns.labels}
    if labels.items() <= recorded.items():
        return state
    properties = target.sql_properties({COLUMNS_PROPERTY: labels_json(recorded | labels)})
    spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({properties})")
    return target.state() or state


def follows_configuration(state: DeltaState, target: Target) -> bool:
    """Whether the table has the layout and the properties that the configuration says. Raises as
    :func:`cdc.lake.delta.layout.layout_of`."""
    return not _changed_properties(state, target) and not _differing_layout(state, target)


def follow_configuration(spark: SparkSession, target: Target, state: DeltaState) -> DeltaState:
    """Gives a table the clustering and the properties that the configuration says. Returns its state. Partitions are
    part of a table from its beginning: they change when a snapshot or a replay writes it anew.

    Raises TargetError if the table has other partitions, or cannot be clustered, and as
    :func:`cdc.lake.delta.layout.layout_of`.
    """
    changed, layout = _changed_properties(state, target), _differing_layout(state, target)
    if layout is not None:
        _require_partitions(state, target, layout)
        if layout.cluster_by is not None and layout.cluster_by != clustering_of(state):
            columns = ", ".join(quote(name) for name in layout.cluster_by)
            spark.sql(f"ALTER TABLE {target.sql} CLUSTER BY {f'({columns})' if columns else 'NONE'}").collect()
            changed |= layout.properties
    if not changed:
        return state
    spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({sql_properties(changed)})").collect()
    return target.state() or state


def _changed_properties(state: DeltaState, target: Target) -> dict[str, str]:
    return {key: value for key, value in target.apply.properties.items() if state.properties.get(key) != value}


def _differing_layout(state: DeltaState, target: Target) -> Layout | None:
    """Returns the layout that the configuration says; None if it says nothing, or the table has it."""
    if target.apply.partition_by is None and target.apply.cluster_by is None:
        return None  # a shared table keeps the layout that its first member gave it
    layout = layout_of(target, schema_of(state).fields)
    same_partitions = layout.partition_by in (None, state.partition_by)
    return None if same_partitions and layout.cluster_by in (None, clustering_of(state)) else layout


def _require_partitions(state: DeltaState, target: Target, layout: Layout) -> None:
    present, partition_by = ", ".join(state.partition_by) or "nothing", layout.partition_by
    asked = ", ".join(partition_by or ()) or "nothing"
    differs = partition_by is not None and partition_by != state.partition_by
    if target.apply.shared and (differs or (layout.cluster_by and state.partition_by)):
        raise TargetError(
            f"the shared Delta table is partitioned by {present}, and the configuration says {asked}",
            place=f"table {target.table} at {target.path}",
            remedy="Write the same partition_by and cluster_by for all destinations that share the table: it has the "
            "partitions that the first of them gave it.",
        )
    anew = f"have the table written anew by `cdc replay {target.destination} {target.table}` or, in mode upsert, by "
    if differs:
        raise TargetError(
            f"the Delta table is partitioned by {present}, and the configuration says {asked}",
            place=f"table {target.table} at {target.path}",
            remedy=f"Set partition_by back, or {anew}`cdc snapshot`.",
        )
    if layout.cluster_by and state.partition_by:
        raise TargetError(
            f"the Delta table is partitioned by {present}, so it cannot be clustered",
            place=f"table {target.table} at {target.path}",
            remedy=f"Write partition_by: [] beside cluster_by, and {anew}`cdc snapshot`.",
        )


def missing_features(state: DeltaState, types: Iterable[t.DataType]) -> dict[str, str]:
    """Returns the properties that must be set before columns of these types are added to the table."""
    properties = feature_properties(f.dataType for f in schema_of(state).fields)
    return {name: value for name, value in feature_properties(types).items() if name not in properties}


def add_columns(
    spark: SparkSession, target: Target, state: DeltaState, columns: list[tuple[t.StructField, str]]
) -> None:
    """Adds columns, each at its position (``FIRST``, ``AFTER x``, or empty for the end)."""
    mapped = state.properties.get("delta.columnMapping.mode", "none") != "none"
    if not mapped and any(NEEDS_MAPPING & set(f.name) for f, _ in columns):
        spark.sql(
            f"ALTER TABLE {target.sql} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
            "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
        )
    features = missing_features(state, [f.dataType for f, _ in columns])
    if features:
        spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({sql_properties(features)})")
    parts = [f"{quote(f.name)} {ddl_type(f.dataType)}{where}" for f, where in columns]
    if target.apply.mode == "append":
        parts += [f"{BEFORE}.{quote(f.name)} {ddl_type(f.dataType)}" for f, _ in columns]
    spark.sql(f"ALTER TABLE {target.sql} ADD COLUMNS ({', '.join(parts)})")
