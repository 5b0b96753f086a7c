"""Looks for new, changed and removed configuration files while a server runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdc.base.errors import CdcError, ConfigError
from cdc.config import DestinationConfig, destinations, load
from cdc.config.memory import in_memory
from cdc.config.watch import WatchedFile


@dataclass(frozen=True)
class ConfigChange:
    """A configuration file that was not like this at the last look. ``config``: what it says now; ``error``: why it
    cannot be used. Neither: it is gone."""

    name: str
    config: DestinationConfig | None = None
    error: CdcError | None = None


class ConfigFolder:
    """The configuration files that a server follows: the named ones, or all of a folder. Reads files; for threads."""

    def __init__(self, folder: Path, names: Sequence[str] = ()) -> None:
        """``names``: the only destinations that are followed; none: all."""
        self.folder = folder
        self.names = tuple(dict.fromkeys(names))
        self._files: dict[str, WatchedFile] = {}

    def scan(self, *, at_once: bool = False) -> list[ConfigChange]:
        """Returns what has changed since the last scan, by name. Each change is told once, when a second scan has found
        the file the same, since somebody may be writing it; ``at_once``: every file counts as changed and as whole.
        Raises ConfigError if there is no folder, which changes nothing: it may be replaced at this moment."""
        if not self.folder.is_dir():
            raise ConfigError("this folder does not exist", place=str(self.folder))
        names = set(self.names or destinations(self.folder))
        changes = []
        for name in sorted(names | self._files.keys()):
            file = self._files.get(name)
            if file is None:
                file = self._files[name] = WatchedFile(self.folder / f"{name}.yaml", taken=False)
                if not at_once:
                    continue
            was_there = file.is_there
            if at_once:
                file.take()
            elif not file.look():
                if not file.is_there and name not in names:
                    del self._files[name]  # it came and went
                continue
            if file.is_there:
                changes.append(_read(name, file.path))
            elif was_there:
                changes.append(ConfigChange(name))
        return changes


def _read(name: str, path: Path) -> ConfigChange:
    try:
        return ConfigChange(name, config=in_memory(load(path)))
    except CdcError as error:
        return ConfigChange(name, error=error)
