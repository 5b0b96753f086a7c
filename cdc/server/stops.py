"""The record that an operator has stopped an instance, which lasts over restarts of the server.

It is ``instance.json`` in the folder of the meta (``docs/formats/server.md``). Without the file the instance runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdc.base.documents import require_version
from cdc.base.errors import DamagedError
from cdc.disk.durable import explain, remove_file, replace_file
from cdc.disk.permissions import CHANGE, secure_folder

if TYPE_CHECKING:
    from pathlib import Path

    from cdc.config import MetaConfig

FILE_NAME = "instance.json"
FORMAT, VERSION = "towpath-instance", 1
_REMEDY = "Remove it, and the instance runs; or stop the instance again."


@dataclass(frozen=True)
class Stop:
    """An operator's stop."""

    at: datetime


def read_stop(meta: MetaConfig) -> Stop | None:
    """Returns the stop that is recorded; None if the instance is to run. Raises DamagedError, VersionError,
    StorageError."""
    path = meta.path / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain(error, path) from error
    return _parse(data, path)


def _parse(data: bytes, path: Path) -> Stop:
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise ValueError(f"its format is {document['format']!r}")
        require_version(document["version"], VERSION, str(path))
        at = datetime.fromisoformat(document["stopped"]["at"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"is not the record of a stop: {error}", place=str(path), remedy=_REMEDY) from None
    return Stop(at)


def record_stop(meta: MetaConfig) -> Stop:
    """Records durably that the instance is stopped. Raises StorageError, ConfigError."""
    stop = Stop(datetime.now(UTC))
    document = {"format": FORMAT, "version": VERSION, "stopped": {"at": stop.at.isoformat()}}
    secure_folder(meta.path, meta.permissions, CHANGE)
    replace_file(meta.path / FILE_NAME, json.dumps(document).encode() + b"\n")
    return stop


def forget_stop(meta: MetaConfig) -> None:
    """Removes the record durably. Raises StorageError, ConfigError."""
    if meta.path.is_dir():
        remove_file(meta.path / FILE_NAME)
