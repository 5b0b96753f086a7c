"""Paths as they are named: made absolute without following symbolic links.

A checkout that is swapped by moving a link (git-sync, ``current -> releases/42``) keeps its name and changes its place.
What a configuration names must not move along, so paths are joined and shortened as text.
"""

from __future__ import annotations

import os
from pathlib import Path

from cdc.errors import ConfigError


def as_named(path: Path) -> Path:
    """The absolute path, without ``.`` and ``..``, through the links that it names.

    Raises ConfigError where ``..`` behind a link leads elsewhere for the system than it reads.
    """
    joined = working_folder() / path
    named = Path(os.path.normpath(joined))
    if ".." in path.parts and joined.exists() and not (named.exists() and named.samefile(joined)):
        raise ConfigError(
            f"goes up from a symbolic link: it reads as {named}, and leads to {os.path.realpath(joined)}",
            place=str(path),
            remedy="Name it without `..`.",
        )
    return named


def below(folder: Path, path: Path) -> Path:
    """A relative path counted from ``folder``, which is absolute; an absolute one as it is."""
    return path if path.is_absolute() else Path(os.path.normpath(folder / path))


def working_folder() -> Path:
    """The working folder by the name under which the shell entered it (``$PWD``), where that is known."""
    real = Path.cwd()
    name = os.environ.get("PWD", "")
    named = Path(name)
    if not named.is_absolute() or os.path.normpath(name) != name:
        return real
    try:
        return named if named.samefile(real) else real
    except OSError:  # the variable is another process's, or the folder is gone
        return real
