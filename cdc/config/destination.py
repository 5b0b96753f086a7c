"""A whole configuration file, and the checks that concern more than one of its sections."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from cdc.config.airflow import AirflowConfig
from cdc.config.apply import ApplyConfig
from cdc.config.batch import BatchConfig
from cdc.config.meta import MetaConfig
from cdc.config.metrics import MetricsConfig
from cdc.config.snapshot import SnapshotConfig
from cdc.config.source import SourceConfig
from cdc.config.spark import SparkConfig
from cdc.config.store import StoreConfig
from cdc.config.tables import TablesConfig
from cdc.config.values import Section
from cdc.errors import ConfigError


class DestinationConfig(Section):
    """A destination: one source server, and what becomes of its changes."""

    source: SourceConfig
    tables: TablesConfig
    store: StoreConfig
    meta: MetaConfig
    batch: BatchConfig = BatchConfig()
    snapshot: SnapshotConfig = SnapshotConfig()
    apply: ApplyConfig
    spark: SparkConfig = SparkConfig()
    airflow: AirflowConfig = AirflowConfig()
    metrics: MetricsConfig = MetricsConfig()

    _name: str = ""
    _file: Path = Path()

    @property
    def name(self) -> str:
        """The destination's name: that of the file, without ``.yaml``."""
        return self._name

    @property
    def file(self) -> Path:
        """The configuration file, absolute."""
        return self._file

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


def check_sections(config: DestinationConfig, file: Path) -> None:
    """Checks that sections do not contradict each other, as far as the file alone can tell. Raises ConfigError."""
    _check_folders(config, file)
    _check_policies(config, file)
    _check_small_batches(config, file)


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


def _check_folders(config: DestinationConfig, file: Path) -> None:
    """Store, meta and tables must not lie in each other, since each owns the names in its folder."""
    folders = [("store.path", config.store.path), ("meta.path", config.meta.path)]
    if config.store.stage is not None and config.store.stage.startswith("file://"):
        folders.append(("store.stage", Path(config.store.stage.removeprefix("file://"))))
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
    """A table's policies for columns must fit one another, its keys, and the key of ``hash``."""
    settings = [("apply", config.apply)]
    settings += [(f"tables.overrides.{table}", config.table_apply(table)) for table in config.tables.overrides]
    for key, apply in settings:
        found = _contradiction(apply)
        if found is not None:
            raise ConfigError(f"{key}.{found[0]}", place=str(file), remedy=found[1])


def _contradiction(apply: ApplyConfig) -> tuple[str, str] | None:
    """Returns a contradiction and its remedy, or None."""
    if apply.partition_by and apply.cluster_by:
        return "partition_by and cluster_by contradict each other", "Keep one of them, and set the other to []."
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
