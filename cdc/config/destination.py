"""A whole configuration file, and the checks that concern more than one of its sections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from pathlib import Path

from cdc.base.errors import ConfigError
from cdc.config.airflow import AirflowConfig
from cdc.config.alarms import AlarmsConfig
from cdc.config.apply import ApplyConfig
from cdc.config.batch import BatchConfig
from cdc.config.catalog import SESSION_CATALOG
from cdc.config.lake import LOG_STORES, SAFE_LOG_STORES
from cdc.config.memory import NO_LAKE, check_memory
from cdc.config.meta import MetaConfig
from cdc.config.metrics import MetricsConfig
from cdc.config.mq import MqConfig
from cdc.config.s3 import S3Config, is_s3
from cdc.config.server import ServerConfig
from cdc.config.snapshot import SnapshotConfig
from cdc.config.source import SourceConfig
from cdc.config.spark import SparkConfig
from cdc.config.store import StoreConfig
from cdc.config.tables import TablesConfig
from cdc.config.values import Section


class DestinationConfig(Section):
    """A destination: one source server, and what becomes of its changes."""

    source: SourceConfig
    tables: TablesConfig
    store: StoreConfig
    meta: MetaConfig = MetaConfig()
    batch: BatchConfig = BatchConfig()
    snapshot: SnapshotConfig = SnapshotConfig()
    apply: ApplyConfig = ApplyConfig(target=NO_LAKE)
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
        override = self.tables.overrides.get(table)
        if override is None:
            return self.apply
        given = {k: getattr(override, k) for k in type(override).model_fields if getattr(override, k) is not None}
        given.pop("members", None)  # they correct the source's definitions, and have no counterpart in ``apply``
        for key in ("columns", "properties", "types"):  # one by one, not as a whole
            if key in given:
                given[key] = {**getattr(self.apply, key), **given[key]}
        return self.apply.model_copy(update=given)


def check_sections(config: DestinationConfig, file: Path, given: AbstractSet[str]) -> None:
    """Checks that sections do not contradict each other, as far as the file alone can tell. ``given``: the sections
    that the file has. Raises ConfigError."""
    check_memory(config, file, given)
    if config.store.kind != "memory" and "apply" not in given:
        raise ConfigError("apply: is missing; add it", place=str(file))
    _check_meta(config, file)
    _check_ha(config, file)
    _check_folders(config, file)
    _check_policies(config, file)
    _check_small_batches(config, file)
    _check_shared(config, file)
    _check_catalog(config, file)
    _check_s3(config, file)
    _check_triggers(config, file)


def _check_triggers(config: DestinationConfig, file: Path) -> None:
    """A trigger looks at the files of a store."""
    if config.store.kind != "server":
        return
    for key, value in (("start", "data"), ("capture", "external")):
        if getattr(config.airflow, key) == value:
            raise ConfigError(
                f"airflow.{key}: {value} and store.kind: server contradict each other: the triggerer looks at the "
                "store's files, which another machine has",
                place=str(file),
                remedy=f"Remove airflow.{key}.",
            )


def _check_meta(config: DestinationConfig, file: Path) -> None:
    """The meta is beside the store."""
    given = "meta" in config.model_fields_set
    if config.store.kind == "server":
        for key in ("meta", "server", "alarms"):
            if key in config.model_fields_set:
                raise ConfigError(
                    f"{key} and store.kind: server contradict each other: the server at {config.store.url} has its own",
                    place=str(file),
                    remedy=f"Remove the section {key}; it belongs into the configuration that `cdc server` reads.",
                )
    elif not given:
        raise ConfigError("meta: is missing; add it", place=str(file))
    elif config.meta.kind != "memory" and config.meta.__dict__["path"] is None:
        raise ConfigError("meta.path: is missing; add it", place=str(file))


def _check_ha(config: DestinationConfig, file: Path) -> None:
    """Several servers share the meta and nothing else."""
    if not config.server.ha.enabled:
        return
    for wrong, what, remedy in (
        (
            config.meta.kind != "zookeeper",
            "server.ha needs meta.kind: zookeeper, which the servers share",
            "Set meta.kind: zookeeper and meta.hosts.",
        ),
        (
            config.store.standby.role != "none",
            "server.ha and store.standby contradict each other: a server of several reads the source itself",
            "Remove store.standby, or server.ha.",
        ),
        (
            bool(config.source.standbys),
            "server.ha and source.standbys contradict each other: a server's store cannot follow another one's move",
            "Remove source.standbys, or server.ha.",
        ),
        (
            config.source.folder is not None,
            "server.ha needs a database server as the source, which each of its servers reads, and not a folder",
            "Set source.url to a server, or remove server.ha.",
        ),
    ):
        if wrong:
            raise ConfigError(what, place=str(file), remedy=remedy)


def _check_small_batches(config: DestinationConfig, file: Path) -> None:
    """Merges without Spark run in the process that would run Spark, and on its disks."""
    if config.apply.small_batches.engine != "deltalake":
        return
    master = config.spark.master
    if config.spark.remote is None and (not master.startswith("local") or master.startswith("local-")):
        raise ConfigError(
            f"apply.small_batches: engine deltalake and spark.master {master} contradict each other: the merges would "
            "run where Spark is submitted from",
            place=str(file),
            remedy="Remove apply.small_batches, or use a local master or spark.remote.",
        )
    if "://" in config.apply.target and not config.apply.target.startswith("file:"):
        raise ConfigError(
            "apply.small_batches: engine deltalake writes to folders of this machine only",
            place=str(file),
            remedy="Remove apply.small_batches, or give apply.target a folder.",
        )


def _check_shared(config: DestinationConfig, file: Path) -> None:
    """A shared table belongs to no destination, so none may give it what the others do not have."""
    apply = config.apply
    if not apply.shared:
        return
    if apply.small_batches.engine == "deltalake":
        raise ConfigError(
            "apply.shared and apply.small_batches contradict each other: delta-rs does not know the other members' "
            "commits as conflicts",
            place=str(file),
            remedy="Remove one of them.",
        )
    if apply.catalog.managed:
        raise ConfigError(
            "apply.shared and apply.catalog.managed contradict each other: no destination owns a shared table",
            place=str(file),
            remedy="Remove apply.catalog.managed.",
        )
    if is_s3(apply.target) and config.s3.log_store == "single_driver":
        raise ConfigError(
            "apply.shared and s3.log_store: single_driver contradict each other: each member has a driver, and two of "
            "them could replace each other's commits",
            place=str(file),
            remedy="Set s3.log_store: conditional_put, which needs an object store with conditional puts.",
        )
    settings = [("apply", apply, apply.model_fields_set)]
    for table, override in config.tables.overrides.items():
        given = {key for key in type(override).model_fields if getattr(override, key) is not None}
        settings.append((f"tables.overrides.{table}", config.table_apply(table), given))
    for key, one, given in settings:
        if one.schema_changes != "additive":
            raise ConfigError(
                f"apply.shared and {key}.schema_changes: {one.schema_changes} contradict each other: a column that one "
                "source drops or renames is still in the others",
                place=str(file),
                remedy=f"Write {key}.schema_changes: additive.",
            )
        if one.constraints:
            raise ConfigError(
                f"apply.shared and {key}.constraints contradict each other: the sources may have other constraints",
                place=str(file),
                remedy=f"Remove {key}.constraints.",
            )
        if one.comments and "comments" in given:
            raise ConfigError(
                f"apply.shared and {key}.comments contradict each other: the sources may have other comments, so a "
                "shared table gets none",
                place=str(file),
                remedy=f"Remove {key}.comments.",
            )


def _check_catalog(config: DestinationConfig, file: Path) -> None:
    """The catalog is one that Spark reaches, and every merge runs in Spark."""
    catalog, conf = config.apply.catalog, config.spark.conf
    if catalog.name is None:
        return
    own = config.spark.remote is None  # a Connect server has settings of its own
    if own and catalog.name != SESSION_CATALOG and f"spark.sql.catalog.{catalog.name}" not in conf:
        raise ConfigError(
            f"apply.catalog.name: Spark has no catalog {catalog.name}",
            place=str(file),
            remedy=f"Write its class as spark.sql.catalog.{catalog.name} in spark.conf.",
        )
    if catalog.managed and not own:
        raise ConfigError(
            "apply.catalog.managed and spark.remote contradict each other: Spark Connect cannot hand a table that has "
            "rows to a catalog",
            place=str(file),
            remedy="Remove apply.catalog.managed, or use spark.master.",
        )
    if config.apply.small_batches.engine == "deltalake":
        raise ConfigError(
            "apply.catalog and apply.small_batches contradict each other: the catalog is reached by Spark, which small "
            "batches do without, so nobody would see that a table has lost its name",
            place=str(file),
            remedy="Remove one of them.",
        )
    for table in catalog.names:
        if table != config.tables.name(table):
            raise ConfigError(
                f"apply.catalog.names: {table!r} is {config.tables.name(table)!r} with tables.lower_case_table_names "
                f"{config.tables.lower_case_table_names}",
                place=str(file),
                remedy="Write it in lower case.",
            )
        if not config.tables.includes_name(table):
            raise ConfigError(
                f"apply.catalog.names: {table!r} is not among the tables that include and exclude choose",
                place=str(file),
                remedy="Correct the name, or remove it.",
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


def _check_s3(config: DestinationConfig, file: Path) -> None:
    """Spark and this process reach one object store, whose commits are guarded."""
    conf = config.spark.conf
    if not is_s3(config.apply.target):
        if config.s3 != S3Config() and not is_s3(config.store.archive.url or ""):
            raise ConfigError(
                f"s3 has no effect with apply.target {config.apply.target}",
                place=str(file),
                remedy="Remove s3, or give apply.target or store.archive a URI like s3a://bucket/lake.",
            )
        return
    if "@" in config.apply.target.split("//", 1)[1].split("/", 1)[0]:
        raise ConfigError(
            "apply.target must not hold a key", place=str(file), remedy="Use s3.access_key_id and its secret."
        )
    for key, instead in _OF_S3.items():
        if key in conf:
            raise ConfigError(
                f"spark.conf: {key} would hold for Spark only, and this process reads the tables' logs, too",
                place=str(file),
                remedy=f"Set {instead} instead.",
            )
    if config.s3.log_store == "single_driver":
        return
    way_out = "Remove it, or set s3.log_store: single_driver and see to it that there is only ever one driver."
    for key in (*LOG_STORES, "spark.delta.logStore.class"):
        if key in conf and conf[key] not in SAFE_LOG_STORES:
            raise ConfigError(
                f"spark.conf: {key} is {conf[key]}, of which Towpath does not know whether two drivers may commit at "
                "once",
                place=str(file),
                remedy=way_out,
            )
    if conf.get(_CONDITIONAL, "true") != "true":
        raise ConfigError(
            f"spark.conf: without {_CONDITIONAL} two drivers could replace each other's commits",
            place=str(file),
            remedy=way_out,
        )


def _check_folders(config: DestinationConfig, file: Path) -> None:
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
            raise ConfigError(what, place=str(file), remedy="Give each a folder of its own.")


def _check_policies(config: DestinationConfig, file: Path) -> None:
    """A table's policies for columns must fit one another, its keys, and the key of ``hash``; and its constraints must
    be possible."""
    settings = [("apply", config.apply)]
    settings += [(f"tables.overrides.{table}", config.table_apply(table)) for table in config.tables.overrides]
    for key, apply in settings:
        found = _contradiction(apply)
        if found is not None:
            raise ConfigError(f"{key}.{found[0]}", place=str(file), remedy=found[1])
        if apply.constraints and config.spark.remote is not None:
            raise ConfigError(
                f"{key}.constraints and spark.remote contradict each other: Spark Connect cannot make columns of a "
                "Delta table NOT NULL",
                place=str(file),
                remedy=f"Remove {key}.constraints, or use spark.master.",
            )
        if apply.constraints and apply.small_batches.engine == "deltalake":
            raise ConfigError(
                f"{key}.constraints and apply.small_batches contradict each other: delta-rs leaves tables with "
                "constraints to Spark",
                place=str(file),
                remedy="Remove one of them.",
            )


def _contradiction(apply: ApplyConfig) -> tuple[str, str] | None:
    """Returns a contradiction and its remedy, or None."""
    if apply.partition_by and apply.cluster_by:
        return "partition_by and cluster_by contradict each other", "Keep one of them, and set the other to []."
    if apply.constraints and apply.mode != "upsert":
        return (
            f"constraints and mode {apply.mode} contradict each other: rows of the past lack columns that came later",
            "Remove constraints, or set it to false for the table.",
        )
    for name, policy in apply.columns.items():
        if policy.kind == "hash" and apply.hash_key_env is None and apply.hash_key_file is None:
            return (
                f"columns.{name}: hash needs a key, and none is configured",
                "Name it with apply.hash_key_env or apply.hash_key_file.",
            )
    keys = {key.lower() for key in apply.keys or ()} if apply.mode != "append" else set()
    for name, policy in apply.columns.items():
        if name in keys and policy.kind in ("drop", "null", "mask"):
            return (
                f"columns.{name}: {policy} and keys contradict each other: a key must tell rows apart",
                "Remove one of them; hash and rename are possible for keys.",
            )
    names = Counter(policy.name.lower() for policy in apply.columns.values() if policy.kind == "rename")
    for name, times in names.items():
        if times > 1:
            return f"columns: {times} columns are renamed to {name}", "Give each a name of its own."
    return None
