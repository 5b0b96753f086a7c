"""The configuration file of a destination that is removed.

It is the only thing that names store, meta, lake and archive, so a removal that was killed needs it again. While it has
its own name, Airflow, ``cdc server`` and services start the destination. So it is renamed first, and renamed again when
everything else is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import ConfigError, UsageError
from cdc.config import destinations, load_destination, parse
from cdc.disk.durable import sync_folder

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

_ASIDE, _KEPT = ".removing", ".removed"


def find(folder: Path, name: str) -> tuple[DestinationConfig, bool]:
    """Returns the configuration of a destination, and whether an earlier removal has taken its file aside. Raises
    ConfigError, UsageError."""
    asides = {path.name.removesuffix(f".yaml{_ASIDE}") for path in folder.glob(f"*.yaml{_ASIDE}")}
    is_there = name in destinations(folder)
    if name not in asides:
        kept = kept_of(folder / f"{name}.yaml")
        if not is_there and kept.exists():
            raise ConfigError(
                f"{name} is removed already: {kept.name} is all that is left of it",
                place=str(folder),
                remedy="Delete that file; or give it its former name, to look for what is left elsewhere.",
            )
        if not is_there:
            raise ConfigError(
                f"no destination is called {name!r} ({name}.yaml)",
                place=str(folder),
                remedy="Only its file names the store, the meta, the lake and the archive. Put it back, for example "
                "from version control, or name its folder with --conf-dir.",
            )
        return load_destination(folder, name), False
    file = folder / f"{name}.yaml"
    aside = aside_of(file)
    if is_there:
        raise UsageError(
            f"a removal of {name} was cut off, and there is a {file.name} again",
            place=str(folder),
            remedy=f"To finish the removal, move {file.name} away; if the destination is to stay, move {aside.name} "
            "away, and look at what `cdc status` says.",
        )
    try:
        text = aside.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", place=str(aside)) from None
    return parse(text, file), True


def aside_of(file: Path) -> Path:
    """Returns the name of a configuration file while its destination is removed."""
    return file.with_name(file.name + _ASIDE)


def kept_of(file: Path) -> Path:
    """Returns the name of a configuration file after its destination was removed."""
    return file.with_name(file.name + _KEPT)


def take_aside(file: Path) -> None:
    """Gives the file the name that nothing but a removal reads. Raises ConfigError if the folder cannot be written."""
    try:
        _rename(file, aside_of(file))
    except OSError as error:
        raise ConfigError(
            f"cannot be renamed: {error.strerror or error}. While it has its name, Airflow, `cdc server` and services "
            "may start the destination again",
            place=str(file),
            remedy="Take the file away where it is managed, put a copy of it into another folder beside the present "
            "one, and run `cdc --conf-dir FOLDER remove` with that.",
        ) from None


def put_back(file: Path) -> None:
    """Gives the file its name back. Raises OSError."""
    _rename(aside_of(file), file)


def keep(file: Path) -> Path:
    """Gives the file its last name, under which it is kept, in place of that of an earlier removal. Returns it."""
    kept = kept_of(file)
    if aside_of(file).exists():
        _rename(aside_of(file), kept)
    return kept


def _rename(before: Path, after: Path) -> None:
    before.rename(after)
    sync_folder(after.parent)
