"""Notices that the file of a running capture's configuration names other tables."""

from __future__ import annotations

import threading
from typing import Any

from cdc.base.errors import CdcError
from cdc.base.log import get_logger
from cdc.config import DestinationConfig, TablesConfig, load
from cdc.config.memory import in_memory
from cdc.config.watch import READ_AT_START, WatchedFile
from cdc.source.binlog_files import BinlogFiles
from cdc.source.schemas import list_tables
from cdc.source.server import Source

log = get_logger(__name__)


class ConfigWatch:
    """Looks at a configuration file again and again.

    A file that somebody is writing may be a valid configuration with fewer tables. So a changed file is read at the
    second look that finds it like that, or at once if :meth:`ask` says that it is complete.
    """

    def __init__(self, config: DestinationConfig) -> None:
        self._config = config
        self._file = WatchedFile(config.file)
        self._asked = threading.Event()

    def ask(self) -> None:
        """Lets the next look read the file, whether it has changed or not. Safe in signal handlers."""
        self._asked.set()

    def look(self) -> DestinationConfig | None:
        """Returns the configuration with other tables if the file names them now. All other settings stay as they were
        when capture began. A file that cannot be used is logged, and changes nothing."""
        if self._asked.is_set():
            self._asked.clear()
            self._file.take()
        elif not self._file.look() or not self._file.is_there:
            return None
        try:
            loaded = in_memory(load(self._config.file))
        except CdcError as error:
            log.error("the configuration cannot be used; capture goes on as before", error=str(error))
            return None
        self._tell_of_others(loaded)
        if _captured(loaded.tables) == _captured(self._config.tables):
            return None
        return self._config.model_copy(update={"tables": loaded.tables})

    def take(self, config: DestinationConfig) -> None:
        """Makes this configuration the one with which the file is compared."""
        self._config = config

    def _tell_of_others(self, loaded: DestinationConfig) -> None:
        others = [name for name in READ_AT_START if getattr(loaded, name) != getattr(self._config, name)]
        if others:
            log.warning("settings have changed that count when capture is started again", sections=others)


def tell_tables(control: Source, before: DestinationConfig, after: DestinationConfig) -> None:
    """Logs which tables of the source are captured from now on, and which no more. Raises SourceUnavailableError."""
    if isinstance(control, BinlogFiles):  # it does not list its tables
        log.info("the tables of the configuration have changed")
        return
    old, new = set(list_tables(control, before.tables)), set(list_tables(control, after.tables))
    added, removed = ([f"{db}.{table}" for db, table in sorted(names)] for names in (new - old, old - new))
    log.info("the tables of the configuration have changed", added=added, removed=removed)
    if added and not after.store.in_memory:
        log.warning(
            "the rows that added tables have already come with a snapshot",
            tables=added,
            remedy=f"Run `cdc snapshot {after.name} {' '.join(added)}`, unless source.start: snapshot and the DAG "
            "of snapshots do it.",
        )


def _captured(tables: TablesConfig) -> tuple[Any, ...]:
    """Returns the settings of the section that capture uses."""
    members = {name: override.members for name, override in tables.overrides.items() if override.members is not None}
    return tables.include, tables.exclude, members
