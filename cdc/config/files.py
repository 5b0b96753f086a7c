"""From a folder of configuration files to a :class:`~cdc.config.destination.DestinationConfig`."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from cdc.config.destination import DestinationConfig
from cdc.config.places import as_named, below
from cdc.config.policies import check_policies
from cdc.config.text import explain, read_yaml
from cdc.errors import ConfigError


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
    """Read and check a configuration file. Relative paths are taken from the folder above the file's own, as it is
    named (``conf/shop.yaml`` → beside ``conf``, be that a symbolic link or not). Raises ConfigError."""
    file = as_named(file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot be read: {reason}", place=str(file)) from None
    return parse(text, file)


def parse(text: str, file: Path) -> DestinationConfig:
    """Check the text of a configuration file that lies, or will lie, at ``file``. Raises ConfigError."""
    file = as_named(file)
    data = read_yaml(text, file)
    try:
        config = DestinationConfig.model_validate(data)
    except ValidationError as error:
        raise explain(error, file, DestinationConfig) from None
    base = file.parent.parent
    config = config.model_copy(
        update={
            "store": config.store.model_copy(update={"path": below(base, config.store.path)}),
            "meta": config.meta.model_copy(update={"path": below(base, config.meta.path)}),
            "apply": config.apply.model_copy(update={"target": _target(base, config.apply.target)}),
        }
    )
    beside = {
        key: below(file.parent, path)
        for key in ("password_file", "ssl_ca")
        if (path := getattr(config.source, key)) is not None
    }
    if beside:
        config = config.model_copy(update={"source": config.source.model_copy(update=beside)})
    if config.apply.hash_key_file is not None:
        apply = config.apply.model_copy(update={"hash_key_file": below(file.parent, config.apply.hash_key_file)})
        config = config.model_copy(update={"apply": apply})
    standby = config.store.standby
    if standby.secret_file is not None:
        standby = standby.model_copy(update={"secret_file": below(file.parent, standby.secret_file)})
        config = config.model_copy(update={"store": config.store.model_copy(update={"standby": standby})})
    _check_places(config, file)
    check_policies(config, file)
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


def _target(base: Path, target: str) -> str:
    return target if "://" in target else str(below(base, Path(target)))
