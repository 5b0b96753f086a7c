"""Who may read what Towpath writes: its own user, or a group as well; never all.

A store holds rows, and a meta the tokens of leases. Their top folders get their mode here, when they are opened for
writing; what is made below takes its mode from its folder (:func:`cdc.files.file_mode`), so nobody else needs to know
the setting.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from cdc.durable import make_folder, storage_errors
from cdc.log import get_logger

Permissions = Literal["private", "group"]
"""``private``: the user's alone. ``group``: for the group of the folder, too."""

READ, CHANGE = 0o050, 0o070
"""What ``group`` lets the group do in a folder: read the files, or change them as well."""
_told: set[Path] = set()
"""Folders of other users of which this process has warned already."""
_log = get_logger(__name__)


def secure_folder(folder: Path, permissions: Permissions, group_may: int) -> None:
    """Make a folder where there is none, and let in whom ``permissions`` names. Where that changes, everything in it
    changes with it: so a folder of an older version is closed to others when it is opened. Raises StorageError,
    ConfigError."""
    make_folder(folder)
    with storage_errors(folder):
        now = folder.stat()
        wanted = 0o700 if permissions == "private" else 0o700 | group_may | stat.S_ISGID
        if permissions == "private":
            wanted |= now.st_mode & stat.S_ISGID
        if stat.S_IMODE(now.st_mode) == wanted:
            return
        if now.st_uid != os.geteuid():
            if folder in _told:
                return
            _told.add(folder)
            _log.warning(
                "the mode of this folder is not what the configuration says, and only its owner can change it",
                folder=str(folder),
                mode=f"{stat.S_IMODE(now.st_mode):04o}",
                wanted=f"{wanted:04o}",
            )
            return
        names = os.listdir(folder)
        _change_below(folder, wanted)
        folder.chmod(wanted)  # last: a change that was cut off is then begun again
        if names:
            _log.info("folder secured", folder=str(folder), mode=f"{wanted:04o}", permissions=permissions)


def _change_below(folder: Path, wanted: int) -> None:
    for path, folders, names in os.walk(folder):
        for name in folders:
            _chmod(Path(path, name), wanted)
        for name in names:
            _chmod(Path(path, name), wanted & 0o660)


def _chmod(path: Path, mode: int) -> None:
    try:
        if not path.is_symlink():
            path.chmod(mode)
    except FileNotFoundError:
        return  # retention or another process removed it in the meantime
    except PermissionError:
        _log.warning("this belongs to another user, and its mode stays as it is", path=str(path))
