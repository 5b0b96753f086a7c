"""The removal of a destination, from the look at what there is to the last file.

The order: the configuration is taken aside; all locks are taken; ``removing.json`` puts the store out of use. Then goes
what is found by the configuration alone (DAGs, names in a catalog, Delta tables, archive, stage, metrics, alarms), then
the meta, then the store with ``removing.json`` as its last file, and at last the configuration gets the name under
which it is kept. A removal that was killed anywhere is finished by another one: each step may be repeated, and
``removing.json`` has what only the first one could know.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cdc.base.errors import CdcError, ConfigError, DamagedError, IdentityError, UsageError
from cdc.base.log import get_logger
from cdc.batches.lease import OWNER_LOCK_NAME
from cdc.config.memory import NO_LAKE
from cdc.copies.archive.states import Archive
from cdc.copies.archive.writer import Archiver
from cdc.disk import object_stores
from cdc.disk.durable import make_folder, remove_file, replace_file
from cdc.lifecycle import obstacles
from cdc.lifecycle.folders import OwnFolder, set_aside_stores
from cdc.lifecycle.removal import configuration, dags
from cdc.lifecycle.removal.lake import LakeTable, NamedTable, entries_of, remove_table, tables_of
from cdc.lifecycle.removal.plan import Options, Part, Plan
from cdc.meta import Meta, State, open_meta
from cdc.meta.base import DurableMeta
from cdc.meta.file import FILE_NAME as META_FILE
from cdc.source.snapshot.files import Folder
from cdc.store.formats import layout
from cdc.watch.metrics.push import forget_runs

Progress = Callable[[str], None]
"""Is called with a sentence for each step that was done."""
_OF_THE_MASTER = "it is the master's; this machine is a standby (store.standby.role)"
_log = get_logger(__name__)


@dataclass(frozen=True)
class _Journal:
    """``removing.json``: what a removal needs to know after it was killed."""

    lake: bool
    archive: bool
    dags: bool
    has_store: bool
    """Whether the folder of the store was one."""
    has_meta: bool
    """Whether the folder of the meta was one."""
    tables: tuple[LakeTable, ...]

    def write(self, store: Path, destination: str) -> None:
        document = {"version": 1, "destination": destination, **asdict(self)}
        replace_file(store / layout.REMOVING_FILE, json.dumps(document, indent=1).encode() + b"\n")

    @classmethod
    def read(cls, store: Path, destination: str) -> _Journal | None:
        """Raises DamagedError, VersionError, StorageError."""
        path = store / layout.REMOVING_FILE
        document = layout.read_document(path)
        if document is None:
            return None
        try:
            if document["destination"] != destination:
                raise ValueError(f"it is that of {document['destination']!r}")
            tables = tuple(LakeTable(**table) for table in document["tables"])
            return cls(
                lake=bool(document["lake"]),
                archive=bool(document["archive"]),
                dags=bool(document["dags"]),
                has_store=bool(document["has_store"]),
                has_meta=bool(document["has_meta"]),
                tables=tables,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(
                f"is not the record of a removal: {error}",
                place=str(path),
                remedy="Remove it, and call `cdc remove` again.",
            ) from None


class Removal:
    """The removal of one destination. Used once, by one thread."""

    def __init__(self, folder: Path, name: str, options: Options) -> None:
        """``folder``: that of the configurations. Raises ConfigError, UsageError."""
        self.config, self.begun = configuration.find(folder, name)
        for obstacle in obstacles.of_configuration(self.config):
            raise obstacle
        self._store, self._meta_path = self.config.store.path, self.config.meta.path
        self._is_standby = self.config.store.standby.role == "standby"
        journal = _Journal.read(self._store, name)
        self._journal = journal
        if journal is not None:
            options = replace(
                options,
                lake=options.lake or journal.lake,
                archive=options.archive or journal.archive,
                dags=options.dags or journal.dags,
                incomplete=True,
            )
        elif self.begun:
            options = replace(options, incomplete=True)
        if self._is_standby and (options.lake or options.archive):
            raise UsageError(
                "this machine is a standby (store.standby.role): lake and archive are its master's",
                place=str(self.config.file),
                remedy="Leave out --lake and --archive here.",
            )
        self.options = options
        self._has_store = _is_store(self._store) if journal is None else journal.has_store
        self._has_meta = _is_meta(self._meta_path) if journal is None else journal.has_meta
        self._tables: list[LakeTable] = []
        self._entries: list[NamedTable] = []

    # --- the look

    def plan(self) -> Plan:
        """Returns what the destination has, what stays, and what prevents the removal. Changes nothing. Raises the
        error of whatever cannot be looked at: StorageError, RetryableError, DamagedError, CatalogUnavailableError."""
        config, plan = self.config, Plan(self.config.name, self.begun)
        with open_meta(config) as meta:
            state = meta.read()
            may_lack = self.options.incomplete or self._is_standby  # which has no meta
            plan.obstacles += obstacles.of_folders(config, state, incomplete=may_lack)
            plan.obstacles += obstacles.of_locks(config)
            if not self._is_standby:
                plan.obstacles += obstacles.of_cluster(config)
                plan.obstacles += obstacles.of_state(state)
                plan.obstacles += obstacles.of_meta(meta)
                error, remark = obstacles.of_source(config)
                plan.obstacles += [] if error is None else [error]
                plan.remarks += [] if remark is None else [remark]
        plan.obstacles += obstacles.of_standby(config)
        errors, remarks = obstacles.of_neighbours(config)
        plan.obstacles += errors
        plan.remarks += remarks
        self._look_at_configuration(plan)
        self._look_at_dags(plan)
        self._look_at_lake(plan, state)
        self._look_at_copies(plan)
        self._look_at_rest(plan)
        self._look_at_meta(plan, state)
        self._look_at_store(plan)
        return plan

    def _look_at_configuration(self, plan: Plan) -> None:
        file = self.config.file
        plan.parts.append(
            Part("configuration", str(file), detail=f"kept as {configuration.kept_of(file).name}", files=1)
        )
        if self.config.server.tokens:
            plan.remarks.append(
                "the tokens of subscribers are where server.tokens names them, and are not removed: "
                + ", ".join(sorted(self.config.server.tokens))
            )

    def _look_at_dags(self, plan: Plan) -> None:
        if self._is_standby:
            return
        commands = [dags.command(dag_id) for dag_id in dags.dag_ids(self.config.name)]
        if self.options.dags:
            dags.program()
            plan.parts += [Part("DAG", dag_id) for dag_id in dags.dag_ids(self.config.name)]
        else:
            plan.commands += commands

    def _look_at_lake(self, plan: Plan, state: State) -> None:
        config = self.config
        if config.apply.target == NO_LAKE:
            return
        if self._is_standby:
            plan.parts.append(Part("tables", config.apply.target, stays=_OF_THE_MASTER))
            return
        recorded = {table for subscription in state.subscriptions.values() for table in subscription.tables}
        begun = {table.path for table in self._journal.tables} if self._journal is not None else set()
        try:
            tables = [table for table in tables_of(config, recorded) if table.path not in begun]
        except (CdcError, ModuleNotFoundError) as error:
            if self.options.lake or config.apply.catalog.name is not None:
                raise
            plan.parts.append(Part("tables", config.apply.target, stays=f"they cannot be looked at: {error}"))
            return
        self._tables = [*(self._journal.tables if self._journal is not None else ()), *tables]
        for table in self._tables:
            stays = table.detail if table.owner != "own" else "" if self.options.lake else "--lake removes it"
            plan.parts.append(Part("table", table.path, table.files, table.bytes, table.table, stays))
        if config.apply.catalog.name is not None:
            self._look_at_catalog(plan, recorded)

    def _look_at_catalog(self, plan: Plan, recorded: set[str]) -> None:
        from cdc.lake.delta.catalog import name_of, require_catalog
        from cdc.lake.runtime.session import acquire
        from cdc.lake.runtime.spark_settings import in_process

        config = self.config
        if config.spark.remote is None and not in_process(config.spark):
            names = {*recorded, *(table.table for table in self._tables if table.owner == "own")}
            for table in sorted(names if self.options.lake or not config.apply.catalog.managed else ()):
                plan.commands.append(f"DROP TABLE {name_of(config, table)}  -- in Spark, where the catalog is")
            plan.remarks.append(
                f"the catalog cannot be reached from here, because Spark is submitted to {config.spark.master}"
            )
            return
        spark = acquire(config.spark).spark
        require_catalog(spark, config)
        self._entries = entries_of(spark, config, self._tables, recorded, lake=self.options.lake)
        plan.parts += [entry.part for entry in self._entries]

    def _look_at_copies(self, plan: Plan) -> None:
        config = self.config
        if config.archive_uri is not None:
            part = self._archive_part(config.archive_uri)
            plan.parts += [] if part is None else [part]
        if config.store.stage is not None and not self._is_standby:
            stage = self._stage()
            if stage.names():
                plan.parts.append(Part("stage", stage.uri, detail="copies of batches and chunks of snapshots"))

    def _archive_part(self, uri: str) -> Part | None:
        """Returns None for an archive in which nothing is."""
        if self._is_standby:
            return Part("archive", uri, stays=_OF_THE_MASTER)
        if self._journal is not None and self._journal.archive:
            return Part("archive", uri, detail="its removal has begun")
        try:
            newest = Archive(self.config).newest()
        except CdcError as error:
            if self.options.archive:
                raise
            return Part("archive", uri, stays=f"it cannot be looked at: {error}")
        if newest is None:
            return None
        totals = newest.state.totals
        detail = f"written by the store of {newest.state.writer.host}"
        stays = "" if self.options.archive else "--archive removes it"
        if self.options.archive and self._has_store:
            try:
                Archiver(self.config).require_writable()
            except IdentityError as error:
                stays = str(error)
        elif self.options.archive:
            stays = "there is no store here, so it is not known whether the archive is this one's"
        return Part("archive", uri, totals.segments, totals.bytes, detail, stays)

    def _stage(self) -> Folder:
        return Folder(f"{str(self.config.store.stage).rstrip('/')}/{self.config.name}")

    def _look_at_rest(self, plan: Plan) -> None:
        config = self.config
        if config.metrics.push is not None and not self._is_standby:
            plan.parts.append(Part("metrics", config.metrics.push, detail=f"of {config.name} at the Pushgateway"))
        for path in self._alarms():
            if path.exists():
                plan.parts.append(Part("alarms", str(path), 1, path.stat().st_size))

    def _alarms(self) -> tuple[Path, Path]:
        path = self.config.alarms_path
        return path, path.with_name(f"{path.name}.lock")

    def _look_at_meta(self, plan: Plan, state: State) -> None:
        config = self.config
        stays = _OF_THE_MASTER if self._is_standby and config.meta.kind == "zookeeper" else ""
        place = config.meta.hosts if config.meta.kind == "zookeeper" else str(self._meta_path)
        for name, subscription in sorted(state.subscriptions.items()):
            parked = f", {len(subscription.parked)} parked tables" if subscription.parked else ""
            detail = f"{name}, acked up to {subscription.acked_seq}, {len(subscription.tables)} tables{parked}"
            plan.parts.append(Part("subscription", str(place), detail=detail, stays=stays))
        if config.meta.kind == "zookeeper":
            node = f"{config.meta.base}/destinations/{config.name}"
            plan.parts.append(Part("nodes", f"zookeeper://{config.meta.zookeepers}{node}", stays=stays))
        if self._has_meta:
            self._look_at_folder(plan, "meta", OwnFolder.of_meta(self._meta_path))

    def _look_at_store(self, plan: Plan) -> None:
        for path in self._stores():
            self._look_at_folder(plan, "store", OwnFolder.of_store(path))
        if self.config.server.ha.enabled:
            plan.remarks.append("other servers of the cluster have stores of their own: run `cdc remove` there, too")

    def _stores(self) -> list[Path]:
        """Returns the folders that are stores: those that were set aside, and the store."""
        own = [self._store] if self._has_store else []
        return [*(path for path in set_aside_stores(self._store) if layout.exists(path)), *own]

    def _look_at_folder(self, plan: Plan, kind: str, folder: OwnFolder) -> None:
        if not folder.path.is_dir():
            return
        files, size = folder.size()
        plan.parts.append(Part(kind, str(folder.path), files, size))
        others = folder.others()
        if others:
            names = ", ".join(others[:5]) + (" …" if len(others) > 5 else "")
            plan.parts.append(Part("other files", str(folder.path), len(others), None, names, "they are not Towpath's"))
        for link in folder.links():
            plan.remarks.append(f"{link} is a symbolic link: it is removed, and what it leads to stays")

    # --- the removal

    def run(self, plan: Plan, progress: Progress = lambda step: None) -> None:
        """Removes what the plan, which :meth:`plan` has just returned, says. Raises the first obstacle, and the error
        of a step that fails; then call it again, when the reason is gone."""
        for obstacle in plan.obstacles:
            raise obstacle
        config = self.config
        if not self.begun:
            configuration.take_aside(config.file)
        with ExitStack() as stack:
            try:
                present = ((self._store, self._has_store), (self._meta_path, self._has_meta))
                obstacles.hold(config, stack, folders=[path for path, is_there in present if is_there])
                self._close_store(plan)
                with open_meta(config) as meta:
                    self._require_free(meta)
            except CdcError:
                if not self.begun and self._journal is None:
                    remove_file(self._store / layout.REMOVING_FILE)
                    configuration.put_back(config.file)
                raise
            progress(f"{config.file.name} is taken aside, and the store is out of use")
            self._remove_outside(plan, progress)
            plan.remarks += self._remove_meta(progress)
            self._remove_store(progress)
        kept = configuration.keep(config.file)
        progress(f"the configuration is kept as {kept}")
        _log.info("destination removed", destination=config.name)

    def _close_store(self, plan: Plan) -> None:
        """Puts the store out of use, and records what the removal has to know after a kill."""
        make_folder(self._store)
        tables = tuple(table for table in self._tables if table.owner == "own") if self.options.lake else ()
        archive = any(part.kind == "archive" for part in plan.removed)
        options = self.options
        journal = _Journal(options.lake, archive, options.dags, self._has_store, self._has_meta, tables)
        journal.write(self._store, self.config.name)

    def _require_free(self, meta: Meta) -> None:
        """Raises the error of whoever took a batch or a table since the look."""
        if self._is_standby:
            return
        for obstacle in (*obstacles.of_state(meta.read()), *obstacles.of_meta(meta)):
            raise obstacle

    def _remove_outside(self, plan: Plan, progress: Progress) -> None:
        if self.options.dags:
            airflow = dags.program()
            for dag_id in dags.dag_ids(self.config.name):
                if dags.forget(airflow, dag_id):
                    progress(f"Airflow has forgotten the DAG {dag_id}")
        self._remove_entries(progress)
        if self.options.lake:
            for table in self._tables:
                if table.owner == "own":
                    remove_table(table)
                    progress(f"table {table.table} is removed")
        for part in plan.removed:
            if part.kind == "archive":
                self._remove_archive(part.place)
                progress(f"archive {part.place} is removed")
            elif part.kind == "stage":
                self._stage().remove()
                progress(f"stage {part.place} is removed")
            elif part.kind == "metrics":
                forget_runs(self.config)
                progress(f"metrics at {part.place} are removed")
            elif part.kind == "alarms":
                remove_file(Path(part.place))

    def _remove_entries(self, progress: Progress) -> None:
        dropped = [entry for entry in self._entries if not entry.part.stays]
        if not dropped:
            return
        from cdc.lake.delta.catalog import drop
        from cdc.lake.runtime.session import acquire

        spark = acquire(self.config.spark).spark
        for entry in dropped:
            drop(spark, entry.name)
            progress(f"catalog entry {entry.name} is removed")

    def _remove_archive(self, uri: str) -> None:
        if uri.startswith("file://"):
            Folder(uri).remove()
        else:
            object_stores.remove_folder(uri)

    def _remove_meta(self, progress: Progress) -> list[str]:
        """Returns remarks on what others have stored beside the meta."""
        left: list[str] = []
        in_zookeeper = self.config.meta.kind == "zookeeper"
        if self._has_meta if not in_zookeeper else not self._is_standby:
            with open_meta(self.config) as meta:
                assert isinstance(meta, DurableMeta)
                left = meta.remove()
            progress(f"meta {meta.place} is removed")
        if self._has_meta:
            OwnFolder.of_meta(self._meta_path).remove()
        return [f"{place} is not Towpath's, and stays" for place in left]

    def _remove_store(self, progress: Progress) -> None:
        for path in self._stores():
            OwnFolder.of_store(path).remove()
            progress(f"store {path} is removed")
        if not self._has_store:
            OwnFolder(self._store, frozenset({layout.REMOVING_FILE})).remove()


def _is_store(folder: Path) -> bool:
    return any((folder / name).exists() for name in (layout.STORE_FILE, layout.RESTORING_FILE))


def _is_meta(folder: Path) -> bool:
    """Whether this is the folder of a meta: with its file, with the lock of a command, or with manifests alone."""
    return (
        (folder / META_FILE).exists()
        or (folder / OWNER_LOCK_NAME).exists()
        or any(path.stem.isdecimal() and len(path.stem) == 12 for path in folder.glob("manifests/*/*.json"))
    )


def require_name(folder: Path, name: str) -> None:
    """Raises ConfigError unless the name is that of a file, and not a path."""
    if name != Path(name).name or name.startswith("."):
        raise ConfigError(f"{name!r} is not the name of a destination", place=str(folder))
