"""``conf/DEST.yaml``: one typed class per stage, checked as a whole when it is loaded.

Nothing else reads the configuration file. An unknown key, a wrong value, or two values that contradict each
other raise :class:`~cdc.errors.ConfigError`, which names file, key, value and remedy.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from cdc.config_retain import DiskConfig, RetainConfig
from cdc.config_source import SourceConfig, StartPosition
from cdc.config_standby import StandbyConfig
from cdc.config_text import explain, read_yaml
from cdc.config_values import DurationS, FilledPath, FilledText, Section, WaitS, Whole
from cdc.errors import ConfigError
from cdc.patterns import is_list
from cdc.store.policy import FlushPolicy

__all__ = [
    "SYSTEM_SCHEMAS",
    "AirflowConfig",
    "ApplyConfig",
    "ApplyOverrides",
    "BatchConfig",
    "DestinationConfig",
    "DiskConfig",
    "MetaConfig",
    "RetainConfig",
    "SourceConfig",
    "SparkConfig",
    "StandbyConfig",
    "StartPosition",
    "StoreConfig",
    "TablesConfig",
    "conf_dir",
    "destinations",
    "find",
    "load",
    "load_destination",
    "parse",
]


class ApplyOverrides(Section):
    """What a single table may have otherwise; absent keys come from ``apply``."""

    mode: Literal["upsert", "soft_delete", "append", "scd2"] | None = None
    keys: tuple[str, ...] | None = None
    """Columns that identify a row, for tables without a primary key."""
    columns: dict[str, Literal["hash", "drop", "null"]] | None = None
    schema_changes: Literal["evolve", "additive", "ignore", "fail"] | None = None
    on_truncate: Literal["apply", "ignore", "fail"] | None = None
    on_drop: Literal["keep", "drop", "fail"] | None = None

    @model_validator(mode="after")
    def _there(self) -> Self:
        if self.mode in ("soft_delete", "scd2"):
            raise ValueError(f"mode {self.mode} is not there yet; use upsert or append")
        if self.columns:
            raise ValueError("column policies are not there yet; remove the key columns")
        if self.keys == ():
            raise ValueError("keys must name at least one column")
        if self.mode == "append" and self.keys is not None:
            raise ValueError("keys and mode append contradict each other; append needs no keys, so remove one of them")
        return self


class TablesConfig(Section):
    """Which tables are captured: regular expressions over ``db.table``, matched whole."""

    include: tuple[str, ...] = Field(min_length=1)
    exclude: tuple[str, ...] = ()
    overrides: dict[str, ApplyOverrides] = Field(default_factory=dict)

    @field_validator("include", "exclude")
    @classmethod
    def _compile(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
            if is_list(pattern):
                raise ValueError(
                    f"{pattern!r} has a comma, which does not separate expressions here; make each an item of the list "
                    "(a comma in a table's name is written \\,)"
                )
        return patterns

    @model_validator(mode="after")
    def _overrides_apply(self) -> Self:
        for name in self.overrides:
            db, dot, table = name.partition(".")
            if not (db and dot and table):
                raise ValueError(f"overrides: {name!r} is not the name of a table; write it as db.table")
            if not any(self.includes(name[:at], name[at + 1 :]) for at, char in enumerate(name) if char == "."):
                raise ValueError(f"overrides: {name!r} is not among the tables that include and exclude choose")
        return self

    # One by one, since expressions with flags like (?i) cannot be joined.
    @cached_property
    def _include(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern) for pattern in self.include)

    @cached_property
    def _exclude(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern) for pattern in self.exclude)

    def includes(self, db: str, table: str) -> bool:
        """Is ``db.table`` captured? The servers' own schemas never are."""
        if db in SYSTEM_SCHEMAS:
            return False
        name = f"{db}.{table}"
        return any(p.fullmatch(name) for p in self._include) and not any(p.fullmatch(name) for p in self._exclude)


SYSTEM_SCHEMAS = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


_ASYNC_KEYS = ("flush_interval_s", "flush_least_pages", "flush_thorough_interval_s")


class StoreConfig(Section):
    """The durable store between capture and apply."""

    kind: Literal["file", "memory"] = "file"
    path: FilledPath
    flush: Literal["sync", "async"] = "sync"
    """``sync``: what is stored is made durable at once. ``async``: by the three keys below; readers see only what is
    durable either way."""
    flush_interval_s: DurationS = 0.5
    """So long after a flush comes the next one, if ``flush_least_pages`` pages of 4 KiB wait for it …"""
    flush_least_pages: Whole = Field(default=4, ge=0)
    flush_thorough_interval_s: DurationS = 10.0
    """… and so long after it, however little waits."""
    slow_flush_s: DurationS = 0.5
    """A flush that takes longer is logged."""
    segment_bytes: Whole = Field(default=268435456, ge=65536, le=2**40)
    retain: RetainConfig = RetainConfig()
    stage: str | None = None
    """URI below which a batch's byte ranges are copied, for executors that do not see ``path``; None: they do."""
    disk: DiskConfig = DiskConfig()
    standby: StandbyConfig = StandbyConfig()

    @field_validator("kind")
    @classmethod
    def _kind(cls, kind: str) -> str:
        if kind == "memory":
            raise ValueError("a memory store lives inside one process; capture and DAGs need kind: file")
        return kind

    @model_validator(mode="after")
    def _flush_keys(self) -> Self:
        given = [key for key in _ASYNC_KEYS if key in self.model_fields_set]
        if self.flush == "sync" and given:
            raise ValueError(f"{given[0]} means nothing with flush: sync; remove it, or write flush: async")
        if self.flush_thorough_interval_s < self.flush_interval_s:
            raise ValueError(
                f"flush_thorough_interval_s {self.flush_thorough_interval_s:g} is below flush_interval_s"
                f" {self.flush_interval_s:g}; it is when everything is flushed, so make it the larger of the two"
            )
        return self

    @model_validator(mode="after")
    def _standby_has_only_what_is_flushed(self) -> Self:
        if self.standby.role == "sync_master" and self.flush == "async":
            raise ValueError(
                "flush: async and standby.role: sync_master contradict each other: a standby gets what is on the disk, "
                "so a put would wait for the flush; use flush: sync, or async_master"
            )
        return self

    @property
    def flush_policy(self) -> FlushPolicy:
        """As the writer takes it."""
        return FlushPolicy(
            self.flush,
            interval_s=self.flush_interval_s,
            least_pages=self.flush_least_pages,
            thorough_interval_s=self.flush_thorough_interval_s,
            slow_flush_s=self.slow_flush_s,
        )

    @field_validator("stage")
    @classmethod
    def _stage(cls, stage: str | None) -> str | None:
        if stage is not None and not re.fullmatch(r"file:///.+|(?!file:)[A-Za-z][A-Za-z0-9+.-]*://.+", stage):
            raise ValueError("is no URI; write file:///shared/stage or s3://bucket/stage")
        return stage


class MetaConfig(Section):
    """Who reads what, and how far."""

    kind: Literal["file", "memory", "zookeeper"] = "file"
    path: FilledPath
    """Folder of the manifests, and of the meta file where that is the kind."""
    hosts: FilledText | None = None
    """ZooKeeper's servers: ``h1:2181,h2:2181``."""
    root: FilledText = "/otter/canal"
    """ZooKeeper's node below which ``destinations/{destination}`` lies."""
    flush: Literal["sync", "period"] = "sync"
    period_s: DurationS = 1.0

    @field_validator("kind")
    @classmethod
    def _kind(cls, kind: str) -> str:
        if kind == "memory":
            raise ValueError("a memory meta lives inside one process; capture and DAGs need kind: file")
        return kind

    @field_validator("flush")
    @classmethod
    def _flush(cls, flush: str) -> str:
        if flush == "period":
            raise ValueError(
                "a meta stored by period lives in the memory of one process; capture, apply and DAGs are many, so use "
                "sync (a program of your own may use cdc.meta.mixed.MixedMeta)"
            )
        return flush

    @field_validator("hosts")
    @classmethod
    def _hosts(cls, hosts: str | None) -> str | None:
        if hosts is not None and not re.fullmatch(rf"{_ZOOKEEPER}(,{_ZOOKEEPER})*", hosts):
            raise ValueError("must be ZooKeeper's servers, like h1:2181,h2:2181")
        return hosts

    @field_validator("root")
    @classmethod
    def _root(cls, root: str) -> str:
        if not re.fullmatch(r"(/[^/\s]+)+", root) or {".", ".."} & set(root.split("/")):
            raise ValueError("must be the path of a node, like /otter/canal")
        return root

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.kind == "zookeeper" and self.hosts is None:
            raise ValueError("kind zookeeper needs hosts; add hosts: h1:2181,h2:2181")
        if self.kind != "zookeeper":
            for key in ("hosts", "root"):
                if key in self.model_fields_set:
                    raise ValueError(f"{key} belongs to kind: zookeeper; remove it, or change kind")
        if "period_s" in self.model_fields_set:
            raise ValueError("period_s belongs to flush: period; remove it")
        return self


_ZOOKEEPER = r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"


class BatchConfig(Section):
    """Where a batch ends: the first limit that is reached. A transaction larger than a limit is a batch of its own."""

    max_bytes: Whole = Field(default=268435456, gt=0)
    max_transactions: Whole | None = Field(default=None, gt=0)
    max_row_events: Whole | None = Field(default=None, gt=0)
    max_wait_s: WaitS = 5.0
    """How long get waits for a first transaction."""
    until_wait_s: WaitS = 60.0
    """How long get with a time limit waits until the store is known to be complete up to then."""
    lease_s: DurationS = 3600.0


class ApplyConfig(Section):
    """What becomes of the changes."""

    mode: Literal["upsert", "soft_delete", "append", "scd2"] = "upsert"
    target: FilledText
    """Folder or URI under which the tables lie as ``{db}/{table}``."""
    schema_changes: Literal["evolve", "additive", "ignore", "fail"] = "evolve"
    on_truncate: Literal["apply", "ignore", "fail"] = "apply"
    on_drop: Literal["keep", "drop", "fail"] = "keep"
    keys: tuple[str, ...] | None = None

    @field_validator("mode")
    @classmethod
    def _mode(cls, mode: str) -> str:
        if mode in ("soft_delete", "scd2"):
            raise ValueError("is not there yet; use upsert or append")
        return mode


class SparkConfig(Section):
    """Where the merges run: in the task (``local[*]``), by spark-submit (any other master), or on a Connect server."""

    master: str = "local[*]"
    remote: str | None = None
    """``sc://host:15002`` of a Spark Connect server; wins over ``master``."""
    conf: dict[str, str] = Field(default_factory=dict)

    @field_validator("master")
    @classmethod
    def _master(cls, master: str) -> str:
        if not re.fullmatch(r"local(-cluster)?(\[.+\])?|(spark|k8s)://.+|yarn", master):
            raise ValueError("is no master of Spark; write local[*], spark://host:7077, yarn or k8s://…")
        return master

    @field_validator("remote")
    @classmethod
    def _remote(cls, remote: str | None) -> str | None:
        if remote is not None and not re.fullmatch(r"sc://[^/\s]+.*", remote):
            raise ValueError("is no Spark Connect server; write sc://host:15002")
        return remote

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, conf: Any) -> Any:
        if not isinstance(conf, dict):
            return conf
        for key, value in conf.items():
            if not str(key).startswith("spark."):
                raise ValueError(f"{key!r} is no setting of Spark; their names begin with spark.")
            if value is None or isinstance(value, dict | list):
                raise ValueError(f"{key!r} needs one value: a text, a number, true or false")
        return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in conf.items()}


class AirflowConfig(Section):
    """How the generated DAGs are scheduled."""

    apply_every: DurationS = 60.0
    """The apply DAG's interval."""
    capture_for: DurationS = 3600.0
    """A capture run ends cleanly after so long; the next one starts at once."""
    retries: Whole = Field(default=3, ge=0)
    until: Literal["interval_end", "none"] = "none"
    """``interval_end``: a run applies exactly what was committed before the end of its data interval, in as many
    batches as that takes; ``none``: it applies one batch of what is there."""


class DestinationConfig(Section):
    """A whole ``conf/DEST.yaml``."""

    source: SourceConfig
    tables: TablesConfig
    store: StoreConfig
    meta: MetaConfig
    batch: BatchConfig = BatchConfig()
    apply: ApplyConfig
    spark: SparkConfig = SparkConfig()
    airflow: AirflowConfig = AirflowConfig()

    _name: str = ""
    _file: Path = Path()

    @property
    def name(self) -> str:
        """The destination's name: the file's, without ``.yaml``."""
        return self._name

    @property
    def file(self) -> Path:
        """The configuration file, absolute."""
        return self._file

    def table_apply(self, table: str) -> ApplyConfig:
        """``apply`` as it holds for ``db.table``, overrides included."""
        override = self.tables.overrides.get(table)
        if override is None:
            return self.apply
        given = {k: v for k, v in override.model_dump().items() if v is not None and k in ApplyConfig.model_fields}
        return self.apply.model_copy(update=given)


def conf_dir(given: Path | None = None) -> Path:
    """``--conf-dir``, else ``$CDC_CONF``, else ``./conf``."""
    return given if given is not None else Path(os.environ.get("CDC_CONF") or "conf")


def destinations(folder: Path) -> list[str]:
    """The names of the configuration files in a folder, sorted."""
    return sorted(p.stem for p in folder.glob("*.yaml"))


def find(folder: Path, name: str | None) -> Path:
    """The file of a destination; the name may be left out where there is only one."""
    if not folder.is_dir():
        raise ConfigError(
            "there is no such folder",
            place=str(folder),
            remedy="Write a configuration with `cdc init`, or name its folder with --conf-dir or $CDC_CONF.",
        )
    names = destinations(folder)
    if name is None:
        if len(names) == 1:
            return folder / f"{names[0]}.yaml"
        if not names:
            raise ConfigError(
                "there is no configuration file in this folder",
                place=str(folder),
                remedy="Write one with `cdc init`.",
            )
        raise ConfigError(
            f"there are several destinations here: {', '.join(names)}", place=str(folder), remedy="Name one of them."
        )
    if name not in names:
        known = f"There are: {', '.join(names)}." if names else "Write one with `cdc init`."
        raise ConfigError(f"there is no destination {name!r} ({name}.yaml)", place=str(folder), remedy=known)
    return folder / f"{name}.yaml"


def load(file: Path) -> DestinationConfig:
    """Read and check a configuration file. Relative paths are taken from the folder above the file's own
    (``conf/shop.yaml`` → beside ``conf/``). Raises ConfigError."""
    file = file.absolute()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot be read: {reason}", place=str(file)) from None
    return parse(text, file)


def parse(text: str, file: Path) -> DestinationConfig:
    """Check the text of a configuration file that lies, or will lie, at ``file``. Raises ConfigError."""
    file = file.absolute()
    data = read_yaml(text, file)
    try:
        config = DestinationConfig.model_validate(data)
    except ValidationError as error:
        raise explain(error, file, DestinationConfig) from None
    base = file.parent.parent
    config = config.model_copy(
        update={
            "store": config.store.model_copy(update={"path": _below(base, config.store.path)}),
            "meta": config.meta.model_copy(update={"path": _below(base, config.meta.path)}),
            "apply": config.apply.model_copy(update={"target": _target(base, config.apply.target)}),
        }
    )
    if config.source.password_file is not None:
        source = config.source.model_copy(update={"password_file": _below(file.parent, config.source.password_file)})
        config = config.model_copy(update={"source": source})
    standby = config.store.standby
    if standby.secret_file is not None:
        standby = standby.model_copy(update={"secret_file": _below(file.parent, standby.secret_file)})
        config = config.model_copy(update={"store": config.store.model_copy(update={"standby": standby})})
    _check_places(config, file)
    config._name, config._file = file.stem, file
    return config


def _check_places(config: DestinationConfig, file: Path) -> None:
    """Store, meta and tables must not lie in each other: each owns the names in its folder."""
    places = [("store.path", config.store.path), ("meta.path", config.meta.path)]
    if config.store.stage is not None and config.store.stage.startswith("file://"):
        places.append(("store.stage", Path(config.store.stage.removeprefix("file://"))))
    if "://" not in config.apply.target:
        places.append(("apply.target", Path(config.apply.target)))
    for number, (key, path) in enumerate(places):
        for other_key, other in places[number + 1 :]:
            if path == other:
                what = f"{key} and {other_key} are the same folder, {path}"
            elif path in other.parents:
                what = f"{other_key} ({other}) lies inside {key} ({path})"
            elif other in path.parents:
                what = f"{key} ({path}) lies inside {other_key} ({other})"
            else:
                continue
            raise ConfigError(what, place=str(file), remedy="Give each a folder of its own.")


def load_destination(folder: Path, name: str | None) -> DestinationConfig:
    """:func:`find` and :func:`load`."""
    return load(find(folder, name))


def _below(base: Path, path: Path) -> Path:
    return path if path.is_absolute() else Path(os.path.normpath(base / path))


def _target(base: Path, target: str) -> str:
    return target if "://" in target else str(_below(base, Path(target)))
