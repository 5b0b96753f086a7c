"""The folder for what can be fetched or made again: jars, copies of logs, records of servers on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Returns ``$TOWPATH_CACHE``, else ``$XDG_CACHE_HOME/towpath``, else ``~/.cache/towpath``."""
    folder = os.environ.get("TOWPATH_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "towpath"
