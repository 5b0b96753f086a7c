"""Loads configuration files: finds the file, reads its YAML, and makes its paths absolute.

Paths are kept as they are named: made absolute without following symbolic links. A checkout that is swapped by moving a
link (git-sync, ``current -> releases/42``) keeps its name while its place changes, and the store must not move along.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from cdc.base.errors import CdcError, ConfigError
from cdc.config.destination import DestinationConfig, check_sections
from cdc.config.lake import Lake
from cdc.config.messages import explain
from cdc.config.s3 import is_s3
from cdc.config.secrets import encryption_keys
from cdc.disk import object_stores
from cdc.disk.encryption import keys

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def conf_dir(folder: Path | None = None) -> Path:
    """Returns the folder of configuration files: ``folder`` (``--conf-dir``), else ``$CDC_CONF``, else ``./conf``."""
    return folder if folder is not None else Path(os.environ.get("CDC_CONF") or "conf")


def destinations(folder: Path) -> list[str]:
    """Returns the names of the destinations that are configured in a folder, sorted."""
    return sorted(p.stem for p in folder.glob("*.yaml"))


def find(folder: Path, name: str | None) -> Path:
    """Returns the file of a destination; without a name, the only one of the folder. Raises ConfigError."""
    if not folder.is_dir():
        raise ConfigError(
            "this folder does not exist",
            place=str(folder),
            remedy="Write a configuration with `cdc init`, or name its folder with --conf-dir or $CDC_CONF.",
        )
    names = destinations(folder)
    if name is None:
        if len(names) == 1:
            return folder / f"{names[0]}.yaml"
        if not names:
            raise ConfigError(
                "this folder holds no configuration file", place=str(folder), remedy="Write one with `cdc init`."
            )
        raise ConfigError(
            f"this folder holds several destinations: {', '.join(names)}",
            place=str(folder),
            remedy="Name one of them.",
        )
    if name not in names:
        remedy = f"Choose from: {', '.join(names)}." if names else "Write one with `cdc init`."
        raise ConfigError(f"no destination is called {name!r} ({name}.yaml)", place=str(folder), remedy=remedy)
    return folder / f"{name}.yaml"


def server_ids(folder: Path) -> set[int]:
    """Returns the server ids that the files of a folder name, those of files that cannot be loaded included."""
    ids: set[int] = set()
    for name in destinations(folder):
        text = (folder / f"{name}.yaml").read_text(encoding="utf-8", errors="replace")
        match = re.search(r"^\s*server_id:\s*(\d+)", text, re.MULTILINE)
        if match is not None:
            ids.add(int(match[1]))
    return ids


def load_destination(folder: Path, name: str | None) -> DestinationConfig:
    """Finds the file of a destination (see :func:`find`) and loads it. Raises ConfigError."""
    return load(find(folder, name))


def neighbours(config: DestinationConfig) -> Iterator[tuple[str, DestinationConfig | CdcError]]:
    """Yields the other destinations of a configuration's folder by name; the error of a file that cannot be loaded."""
    folder = config.file.parent
    for name in destinations(folder):
        if name == config.name:
            continue
        try:
            yield name, load_destination(folder, name)
        except CdcError as error:
            yield name, error


def as_config(destination: DestinationConfig | str | Path | None) -> DestinationConfig:
    """Returns the configuration that a caller names: by itself, by the path of its file, or by its name in the folder
    of configurations; None means the only one there. Raises ConfigError."""
    if isinstance(destination, DestinationConfig):
        return destination
    if destination is not None and (isinstance(destination, Path) or destination.endswith((".yaml", ".yml"))):
        return load(Path(destination))
    return load_destination(conf_dir(), destination)


def load(file: Path | str) -> DestinationConfig:
    """Reads and checks a configuration file. Raises ConfigError.

    Relative paths of store, meta and target are taken from the folder above that of the file as it is named
    (``conf/shop.yaml``: the folder of ``conf``, whether that is a symbolic link or not); those of files with secrets
    and certificates from the file's own folder.
    """
    file = as_named(Path(file))
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot be read: {reason}", place=str(file)) from None
    return parse(text, file)


def parse(text: str, file: Path) -> DestinationConfig:
    """Checks the text of a configuration file whose path is, or will be, ``file``. Raises ConfigError."""
    file = as_named(file)
    data = read_yaml(text, file)
    try:
        config = DestinationConfig.model_validate(data, context=file)
    except ValidationError as error:
        raise explain(error, file, DestinationConfig) from None
    check_sections(config, file)
    config._name, config._file = file.stem, file
    if is_s3(config.apply.target):
        lake = Lake(config.apply.target, config.s3)
        config.spark._lake = lake
        object_stores.register(lake.target, lake.reader_options)
    archive = config.store.archive.url
    if archive is not None and is_s3(archive):
        object_stores.register(archive, Lake(archive, config.s3).reader_options)
    if config.store.kind == "file":
        sources = encryption_keys(config.store.encryption)
        keys.register(config.store.path, sources)
        if config.store.stage is not None:
            keys.register(f"{config.store.stage.rstrip('/')}/{config.name}", sources)
    return config


# --- YAML


class _Loader(yaml.SafeLoader):
    """Reads YAML and refuses a duplicate key, of which PyYAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key.value!r}", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_yaml(text: str, file: Path) -> dict[str, Any]:
    """Returns the sections of the file, with each ``${NAME}`` replaced from the environment. Raises ConfigError."""
    try:
        data = yaml.load(text, _Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise ConfigError(f"is not valid YAML: {error.problem}", place=f"{file}{line}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"is not valid YAML: {' '.join(str(error).split())}", place=str(file)) from None
    if not isinstance(data, dict) or not data:
        remedy = "Remove it, then write it" if text.strip() else "Write it"
        raise ConfigError("holds no sections", place=str(file), remedy=f"{remedy} with `cdc init`.")
    replaced: dict[str, Any] = _replace_variables(data, file, "")
    return replaced


def _replace_variables(value: Any, file: Path, key: str) -> Any:
    if isinstance(value, dict):
        return {k: _replace_variables(v, file, f"{key}.{k}" if key else str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_replace_variables(v, file, f"{key}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def from_environment(match: re.Match[str]) -> str:
        value = os.environ.get(match[1])
        if value is None:
            raise ConfigError(
                f"the environment variable {match[1]} is not set",
                place=f"{file}: {key}",
                remedy=f"Set {match[1]}, or write the value itself.",
            )
        return value

    replaced = _VARIABLE.sub(from_environment, value)
    if replaced == value or not _VARIABLE.fullmatch(value):
        return replaced
    try:
        number = yaml.safe_load(replaced)  # a variable that is the whole value may hold a number or a boolean
    except yaml.YAMLError:
        return replaced
    return number if isinstance(number, bool | int | float) else replaced


# --- paths


def as_named(path: Path) -> Path:
    """Returns the absolute path, without ``.`` and ``..``, through the symbolic links that it names.

    Raises ConfigError if ``..`` follows a link, so that the system takes the path elsewhere than it reads.
    """
    joined = _working_folder() / path
    named = Path(os.path.normpath(joined))
    if ".." in path.parts and joined.exists() and not (named.exists() and named.samefile(joined)):
        raise ConfigError(
            f"goes up from a symbolic link: it reads as {named}, and leads to {os.path.realpath(joined)}",
            place=str(path),
            remedy="Name it without `..`.",
        )
    return named


def _working_folder() -> Path:
    """Returns the working folder by the name under which the shell entered it (``$PWD``), if that is known."""
    real = Path.cwd()
    name = os.environ.get("PWD", "")
    named = Path(name)
    if not named.is_absolute() or os.path.normpath(name) != name:
        return real
    try:
        return named if named.samefile(real) else real
    except OSError:  # the variable is another process's, or the folder is gone
        return real
