"""A whole configuration file, and the checks that concern more than one of its sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from cdc.base.errors import ConfigError
from cdc.base.targets import split_table, table_path
from cdc.config.airflow import ALARMS, AirflowConfig
from cdc.config.alarms import AlarmsConfig
from cdc.config.apply import ApplyConfig
from cdc.config.batch import BatchConfig
from cdc.config.catalog import SESSION_CATALOG
from cdc.config.lake import LOG_STORES, SAFE_LOG_STORES
from cdc.config.memory import NO_LAKE, memory_contradictions
from cdc.config.meta import MetaConfig
from cdc.config.metrics import MetricsConfig
from cdc.config.mq import MqConfig
from cdc.config.s3 import S3Config, is_s3
from cdc.config.server import ServerConfig
from cdc.config.snapshot import SnapshotConfig
from cdc.config.source import SourceConfig
from cdc.config.spark import SparkConfig
from cdc.config.store import StoreConfig
from cdc.config.tables import ApplyOverrides, TablesConfig
from cdc.config.values import Contradiction, Section
from cdc.config.verify import VerifyConfig


class DestinationConfig(Section):
    """A destination: one source server, and what becomes of its changes."""

    source: SourceConfig
    tables: TablesConfig
    store: StoreConfig
    meta: MetaConfig = MetaConfig()
    batch: BatchConfig = BatchConfig()
    snapshot: SnapshotConfig = SnapshotConfig()
    apply: ApplyConfig = ApplyConfig(target=NO_LAKE)
    verify: VerifyConfig = VerifyConfig()
    s3: S3Config = S3Config()
    spark: SparkConfig = SparkConfig()
    airflow: AirflowConfig = AirflowConfig()
    metrics: MetricsConfig = MetricsConfig()
    server: ServerConfig = ServerConfig()
    alarms: AlarmsConfig = AlarmsConfig()
    mq: MqConfig = MqConfig()

    _name: str = ""
    _file: Path = Path()

    @property
    def name(self) -> str:
        """The destination's name: that of the file, without ``.yaml``."""
        return self._name

    @property
    def archive_uri(self) -> str | None:
        """The destination's folder in the archive of its store; None if no archive is configured."""
        url = self.store.archive.url
        return None if url is None else f"{url}/{self.name}"

    @property
    def forgets_readers(self) -> bool:
        """Whether the meta ends with the server."""
        return self.store.in_memory and self.meta.path.is_relative_to(self.store.run_folder)

    @property
    def alarms_path(self) -> Path:
        """The file with the alarms that were raised."""
        if self.alarms.path is not None:
            return self.alarms.path
        return self.store.path.with_name(f"{self.store.path.name}.alarms.json")

    @property
    def file(self) -> Path:
        """The configuration file, absolute."""
        return self._file

    def at_server(self, address: str | None) -> DestinationConfig:
        """Returns this configuration for the source's server at ``host:port``, to which capture has moved; unchanged if
        there is no such server."""
        for source in self.source.servers():
            if source.address == address:
                return self if source is self.source else self.model_copy(update={"source": source})
        return self

    def table_apply(self, table: str) -> ApplyConfig:
        """Returns ``apply`` for the table ``db.table``, with its overrides."""
        override = self.tables.override(table)
        # A routed table is a member of its Delta table, as a destination is one of a shared table.
        apply = self.apply if override is None else self.overridden(override)
        if self.tables.is_routed(table):
            return apply.model_copy(update={"shared": True, "schema_changes": "additive"})
        return apply

    def overridden(self, override: ApplyOverrides) -> ApplyConfig:
        """Returns ``apply`` with the settings of single tables."""
        values = {k: getattr(override, k) for k in type(override).model_fields if getattr(override, k) is not None}
        values.pop("members", None)  # they correct the source's definitions, and have no counterpart in ``apply``
        for key in ("columns", "properties", "types"):  # one by one, not as a whole
            if key in values:
                values[key] = {**getattr(self.apply, key), **values[key]}
        return self.apply.model_copy(update=values)

    def table_path(self, table: str) -> str:
        """Returns the path or URI of the Delta table of ``db.table``. Raises UsageError; ConfigError as
        :meth:`TablesConfig.lake_name`."""
        return table_path(self.apply.target, *split_table(self.tables.lake_name(table)))


def check_sections(config: DestinationConfig, file: Path) -> None:
    """Checks that sections do not contradict each other, as far as the file alone can tell. Raises ConfigError."""
    for rules in _RULES:
        for contradiction in rules(config):
            raise ConfigError(contradiction.problem, place=str(file), remedy=contradiction.remedy)


def _capture_watch(config: DestinationConfig) -> Iterator[Contradiction]:
    """The watch over a capture looks at the files of its store."""
    if config.store.kind == "server" and config.airflow.capture == "external":
        yield Contradiction(
            "airflow.capture: external and store.kind: server contradict each other: the triggerer looks at the "
            "store's files, which another machine has",
            "Remove airflow.capture; the server watches its captures.",
        )


def _airflow_alarms(config: DestinationConfig) -> Iterator[Contradiction]:
    """Airflow tells the handlers of the alarms."""
    airflow = config.airflow
    keys = {"on_failure: alarms": airflow.on_failure == ALARMS, "interval_deadline": airflow.interval_deadline}
    for key, is_set in keys.items():
        if is_set and not config.alarms.handlers:
            yield Contradiction(
                f"airflow.{key} has no effect without handlers in alarms: nobody is told",
                "Add alarms: {webhook: {url: URL}}, mail or command, or remove it.",
            )


def _push(config: DestinationConfig) -> Iterator[Contradiction]:
    """A push needs brokers, and a store on a disk."""
    if config.server.push == "none":
        return
    if not config.mq.servers:
        yield Contradiction(
            "server.push: always has no effect without mq.servers: there is nothing to push to",
            "Add mq: {servers: [HOST:9092], topic: NAME}, or remove server.push.",
        )
    if config.store.kind == "memory":
        yield Contradiction(
            "server.push: always and store.kind: memory contradict each other: `cdc push` reads a store on a disk",
            "Set store.kind: file, or remove server.push.",
        )


def _meta(config: DestinationConfig) -> Iterator[Contradiction]:
    """The meta is beside the store."""
    if config.store.kind != "memory" and "apply" not in config.model_fields_set:
        yield Contradiction("apply: is missing; add it")
    has_meta = "meta" in config.model_fields_set
    if config.store.kind == "server":
        for key in ("meta", "server", "alarms"):
            if key in config.model_fields_set:
                yield Contradiction(
                    f"{key} and store.kind: server contradict each other: the server at {config.store.url} has its own",
                    f"Remove the section {key}; it belongs into the configuration that `cdc server` reads.",
                )
    elif not has_meta:
        yield Contradiction("meta: is missing; add it")
    elif config.meta.kind != "memory" and config.meta.__dict__["path"] is None:
        yield Contradiction("meta.path: is missing; add it")


def _ha(config: DestinationConfig) -> Iterator[Contradiction]:
    """Several servers share the meta and nothing else."""
    if not config.server.ha.enabled:
        return
    if config.meta.kind != "zookeeper":
        yield Contradiction(
            "server.ha needs meta.kind: zookeeper, which the servers share", "Set meta.kind: zookeeper and meta.hosts."
        )
    if config.store.standby.role != "none":
        yield Contradiction(
            "server.ha and store.standby contradict each other: a server of several reads the source itself",
            "Remove store.standby, or server.ha.",
        )
    if config.source.standbys:
        yield Contradiction(
            "server.ha and source.standbys contradict each other: a server's store cannot follow another one's move",
            "Remove source.standbys, or server.ha.",
        )
    if config.source.folder is not None:
        yield Contradiction(
            "server.ha needs a database server as the source, which each of its servers reads, and not a folder",
            "Set source.url to a server, or remove server.ha.",
        )


def _small_batches(config: DestinationConfig) -> Iterator[Contradiction]:
    """Merges without Spark run in the process that would run Spark, and on its disks."""
    if config.apply.small_batches.engine != "deltalake":
        return
    master = config.spark.master
    if config.spark.remote is None and (not master.startswith("local") or master.startswith("local-")):
        yield Contradiction(
            f"apply.small_batches: engine deltalake and spark.master {master} contradict each other: the merges would "
            "run where Spark is submitted from",
            "Remove apply.small_batches, or use a local master or spark.remote.",
        )
    if "://" in config.apply.target and not config.apply.target.startswith("file:"):
        yield Contradiction(
            "apply.small_batches: engine deltalake writes to folders of this machine only",
            "Remove apply.small_batches, or give apply.target a folder.",
        )


def _shared(config: DestinationConfig) -> Iterator[Contradiction]:
    """A shared table belongs to no destination, so none may give it what the others do not have."""
    apply = config.apply
    if not apply.shared:
        return
    if apply.small_batches.engine == "deltalake":
        yield Contradiction(
            "apply.shared and apply.small_batches contradict each other: delta-rs does not know the other members' "
            "commits as conflicts",
            "Remove one of them.",
        )
    if apply.catalog.managed:
        yield Contradiction(
            "apply.shared and apply.catalog.managed contradict each other: no destination owns a shared table",
            "Remove apply.catalog.managed.",
        )
    if is_s3(apply.target) and config.s3.log_store == "single_driver":
        yield Contradiction(
            "apply.shared and s3.log_store: single_driver contradict each other: each member has a driver, and two of "
            "them could replace each other's commits",
            "Set s3.log_store: conditional_put, which needs an object store with conditional puts.",
        )
    settings = [("apply", apply, apply.model_fields_set)]
    for table, override in config.tables.overrides.items():
        keys = {key for key in type(override).model_fields if getattr(override, key) is not None}
        settings.append((f"tables.overrides.{table}", config.table_apply(table), keys))
    for key, table_apply, keys in settings:
        if table_apply.schema_changes != "additive":
            yield Contradiction(
                f"apply.shared and {key}.schema_changes: {table_apply.schema_changes} contradict each other: "
                "a column that one source drops or renames is still in the others",
                f"Write {key}.schema_changes: additive.",
            )
        if table_apply.constraints:
            yield Contradiction(
                f"apply.shared and {key}.constraints contradict each other: the sources may have other constraints",
                f"Remove {key}.constraints.",
            )
        if table_apply.comments and "comments" in keys:
            yield Contradiction(
                f"apply.shared and {key}.comments contradict each other: the sources may have other comments, so a "
                "shared table gets none",
                f"Remove {key}.comments.",
            )


def _route(config: DestinationConfig) -> Iterator[Contradiction]:
    """Several source tables write a routed table, each its own rows."""
    apply = config.apply
    if not config.tables.route:
        return
    if apply.shared:
        yield Contradiction(
            "tables.route and apply.shared contradict each other: _source names either the source table or the "
            "destination of a row",
            "Remove one of them, and give each destination an apply.target of its own.",
        )
    if apply.small_batches.engine == "deltalake":
        yield Contradiction(
            "tables.route and apply.small_batches contradict each other: delta-rs does not know the commits for other "
            "source tables as conflicts",
            "Remove one of them.",
        )
    if apply.catalog.managed:
        yield Contradiction(
            "tables.route and apply.catalog.managed contradict each other: a table that the catalog owns has one "
            "source table",
            "Remove apply.catalog.managed.",
        )
    overrides = {name: override for name, override in config.tables.overrides.items() if config.tables.is_target(name)}
    settings = [(f"tables.overrides.{name}", config.overridden(override)) for name, override in overrides.items()]
    if not overrides.keys() >= {*config.tables.route.values()}:  # some routed tables have no settings of their own
        settings.append(("apply", apply))
    for key, table_apply in settings:
        if table_apply.schema_changes in ("ignore", "fail"):
            yield Contradiction(
                f"tables.route and {key}.schema_changes: {table_apply.schema_changes} contradict each other: columns "
                "of a routed table are added and widened",
                "Write schema_changes: additive for the Delta table under tables.overrides.",
            )
        if table_apply.constraints:
            yield Contradiction(
                f"tables.route and {key}.constraints contradict each other: the source tables may have other "
                "constraints",
                "Write constraints: false for the Delta table under tables.overrides.",
            )
    for name, override in overrides.items():
        if override.schema_changes == "evolve":
            yield Contradiction(
                f"tables.route and tables.overrides.{name}.schema_changes: evolve contradict each other: a column that "
                "one source table drops or renames is still in the others",
                f"Write tables.overrides.{name}.schema_changes: additive.",
            )
        if override.comments:
            yield Contradiction(
                f"tables.route and tables.overrides.{name}.comments contradict each other: the source tables may have "
                "other comments, so a routed table gets none",
                f"Remove tables.overrides.{name}.comments.",
            )


def _catalog(config: DestinationConfig) -> Iterator[Contradiction]:
    """The catalog is one that Spark reaches, and every merge runs in Spark."""
    catalog, conf = config.apply.catalog, config.spark.conf
    if catalog.name is None:
        return
    own = config.spark.remote is None  # a Connect server has settings of its own
    if own and catalog.name != SESSION_CATALOG and f"spark.sql.catalog.{catalog.name}" not in conf:
        yield Contradiction(
            f"apply.catalog.name: Spark has no catalog {catalog.name}",
            f"Write its class as spark.sql.catalog.{catalog.name} in spark.conf.",
        )
    if catalog.managed and not own:
        yield Contradiction(
            "apply.catalog.managed and spark.remote contradict each other: Spark Connect cannot hand a table that has "
            "rows to a catalog",
            "Remove apply.catalog.managed, or use spark.master.",
        )
    if config.apply.small_batches.engine == "deltalake":
        yield Contradiction(
            "apply.catalog and apply.small_batches contradict each other: the catalog is reached by Spark, which small "
            "batches do without, so nobody would see that a table has lost its name",
            "Remove one of them.",
        )
    for table in catalog.names:
        if table != config.tables.name(table):
            yield Contradiction(
                f"apply.catalog.names: {table!r} is {config.tables.name(table)!r} with tables.lower_case_table_names "
                f"{config.tables.lower_case_table_names}",
                "Write it in lower case.",
            )
        if not (config.tables.includes_name(table) or config.tables.is_target(table)):
            yield Contradiction(
                f"apply.catalog.names: {table!r} is not among the tables that include and exclude choose",
                "Correct the name, or remove it.",
            )


_S3A = "spark.hadoop.fs.s3a."
_OF_S3 = {
    f"{_S3A}endpoint": "s3.endpoint",
    f"{_S3A}endpoint.region": "s3.region",
    f"{_S3A}path.style.access": "s3.path_style",
    f"{_S3A}access.key": "s3.access_key_id",
    f"{_S3A}secret.key": "s3.secret_access_key_env",
    f"{_S3A}session.token": "s3.session_token_env",
}
"""Settings of Spark that keys of ``s3`` stand for."""
_CONDITIONAL = f"{_S3A}create.conditional.enabled"


def _s3(config: DestinationConfig) -> Iterator[Contradiction]:
    """Spark and this process reach one object store, whose commits are guarded."""
    conf = config.spark.conf
    if not is_s3(config.apply.target):
        if config.s3 != S3Config() and not is_s3(config.store.archive.url or ""):
            yield Contradiction(
                f"s3 has no effect with apply.target {config.apply.target}",
                "Remove s3, or give apply.target or store.archive a URI like s3a://bucket/lake.",
            )
        return
    if "@" in config.apply.target.split("//", 1)[1].split("/", 1)[0]:
        yield Contradiction("apply.target must not hold a key", "Use s3.access_key_id and its secret.")
    for key, instead in _OF_S3.items():
        if key in conf:
            yield Contradiction(
                f"spark.conf: {key} would hold for Spark only, and this process reads the tables' logs, too",
                f"Set {instead} instead.",
            )
    if config.s3.log_store == "single_driver":
        return
    way_out = "Remove it, or set s3.log_store: single_driver and see to it that there is only ever one driver."
    for key in (*LOG_STORES, "spark.delta.logStore.class"):
        if key in conf and conf[key] not in SAFE_LOG_STORES:
            yield Contradiction(
                f"spark.conf: {key} is {conf[key]}, of which Towpath does not know whether two drivers may commit at "
                "once",
                way_out,
            )
    if conf.get(_CONDITIONAL, "true") != "true":
        yield Contradiction(
            f"spark.conf: without {_CONDITIONAL} two drivers could replace each other's commits", way_out
        )


def _folders(config: DestinationConfig) -> Iterator[Contradiction]:
    """Store, meta and tables must not lie in each other, since each owns the names in its folder."""
    folders: list[tuple[str, Path]] = []
    if config.store.kind == "file":
        folders = [("store.path", config.store.path)]
    if config.meta.__dict__["path"] is not None:
        folders.append(("meta.path", config.meta.path))
    for key, uri in (("store.stage", config.store.stage), ("store.archive.url", config.store.archive.url)):
        if uri is not None and uri.startswith("file://"):
            folders.append((key, Path(uri.removeprefix("file://"))))
    if "://" not in config.apply.target:
        folders.append(("apply.target", Path(config.apply.target)))
    for number, (key, path) in enumerate(folders):
        for other_key, other in folders[number + 1 :]:
            if path == other:
                what = f"{key} and {other_key} are the same folder, {path}"
            elif path in other.parents:
                what = f"{other_key} ({other}) lies inside {key} ({path})"
            elif other in path.parents:
                what = f"{key} ({path}) lies inside {other_key} ({other})"
            else:
                continue
            yield Contradiction(what, "Give each a folder of its own.")


def _policies(config: DestinationConfig) -> Iterator[Contradiction]:
    """A table's policies for columns must fit one another, its keys, and the key of ``hash``; and its constraints must
    be possible."""
    settings = [("apply", config.apply)]
    settings += [(f"tables.overrides.{table}", config.table_apply(table)) for table in config.tables.overrides]
    for key, apply in settings:
        yield from _policies_of(apply, key)
        if apply.constraints and config.spark.remote is not None:
            yield Contradiction(
                f"{key}.constraints and spark.remote contradict each other: Spark Connect cannot make columns of a "
                "Delta table NOT NULL",
                f"Remove {key}.constraints, or use spark.master.",
            )
        if apply.constraints and apply.small_batches.engine == "deltalake":
            yield Contradiction(
                f"{key}.constraints and apply.small_batches contradict each other: delta-rs leaves tables with "
                "constraints to Spark",
                "Remove one of them.",
            )


def _policies_of(apply: ApplyConfig, key: str) -> Iterator[Contradiction]:
    """Yields the contradictions between the keys of the section ``key``."""
    if apply.partition_by and apply.cluster_by:
        yield Contradiction(
            f"{key}.partition_by and cluster_by contradict each other", "Keep one of them, and set the other to []."
        )
    if apply.constraints and apply.mode != "upsert":
        yield Contradiction(
            f"{key}.constraints and mode {apply.mode} contradict each other: rows of the past lack columns that came "
            "later",
            "Remove constraints, or set it to false for the table.",
        )
    for name, policy in apply.columns.items():
        if policy.kind == "hash" and not apply.hash_key.is_given:
            yield Contradiction(
                f"{key}.columns.{name}: hash needs a key, and none is configured",
                "Name it with apply.hash_key_env or apply.hash_key_file.",
            )
    keys = {column.lower() for column in apply.keys or ()} if apply.mode != "append" else set()
    for name, policy in apply.columns.items():
        if name in keys and policy.kind in ("drop", "null", "mask"):
            yield Contradiction(
                f"{key}.columns.{name}: {policy} and keys contradict each other: a key must tell rows apart",
                "Remove one of them; hash and rename are possible for keys.",
            )
    names = Counter(policy.name.lower() for policy in apply.columns.values() if policy.kind == "rename")
    for name, times in names.items():
        if times > 1:
            yield Contradiction(f"{key}.columns: {times} columns are renamed to {name}", "Give each a name of its own.")


# A rule may rely on those before it: the first contradiction is the error.
_RULES: tuple[Callable[[DestinationConfig], Iterator[Contradiction]], ...] = (
    memory_contradictions,
    _meta,
    _ha,
    _folders,
    _policies,
    _small_batches,
    _shared,
    _route,
    _catalog,
    _s3,
    _capture_watch,
    _airflow_alarms,
    _push,
)
