"""The permissions of folders that Towpath writes: for its own user, or for a group as well; never for all.

A store holds rows, and a meta the tokens of leases. Their top folders get their mode here, when they are opened for
writing. Files below take their mode from their folder (:func:`cdc.disk.files.file_mode`), so no other module needs the
setting.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Literal

from cdc.base.log import get_logger
from cdc.disk.durable import make_folder, storage_errors

Permissions = Literal["private", "group"]
"""``private``: for the user only. ``group``: for the group of the folder, too."""

READ, CHANGE = 0o050, 0o070
"""The rights that ``group`` gives the group in a folder: to read the files, or to change them as well."""
_told: set[Path] = set()
"""Folders of other users that this process has warned about."""
_log = get_logger(__name__)


def secure_folder(folder: Path, permissions: Permissions, group_may: int) -> None:
    """Creates a folder if it is missing, and gives it the mode that ``permissions`` asks for. If the mode changes, that
    of everything in the folder changes, too: a folder of an older version is closed to others when it is opened. Raises
    StorageError, ConfigError."""
    make_folder(folder)
    with storage_errors(folder):
        now = folder.stat()
        mode = 0o700 if permissions == "private" else 0o700 | group_may | stat.S_ISGID
        if permissions == "private":
            mode |= now.st_mode & stat.S_ISGID
        if stat.S_IMODE(now.st_mode) == mode:
            return
        if now.st_uid != os.geteuid():
            if folder in _told:
                return
            _told.add(folder)
            _log.warning(
                "the mode of this folder differs from the configuration, and only its owner can change it",
                folder=str(folder),
                mode=f"{stat.S_IMODE(now.st_mode):04o}",
                wanted=f"{mode:04o}",
            )
            return
        names = os.listdir(folder)
        _change_below(folder, mode)
        folder.chmod(mode)  # last, so that an interrupted change is repeated
        if names:
            _log.info("folder secured", folder=str(folder), mode=f"{mode:04o}", permissions=permissions)


def _change_below(folder: Path, mode: int) -> None:
    for path, folders, names in os.walk(folder):
        for name in folders:
            _chmod(Path(path, name), mode)
        for name in names:
            _chmod(Path(path, name), mode & 0o660)


def _chmod(path: Path, mode: int) -> None:
    try:
        if not path.is_symlink():
            path.chmod(mode)
    except FileNotFoundError:
        return  # retention or another process removed it in the meantime
    except PermissionError:
        _log.warning("cannot change the mode of a file that belongs to another user", path=str(path))
