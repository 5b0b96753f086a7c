"""The version of the installed package."""

from __future__ import annotations

from functools import cache


@cache
def package_version() -> str:
    """Returns the version of ``towpath`` that is installed. ``cdc.__version__`` is the same, for programs."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and few commands need it

    try:
        return version("towpath")
    except PackageNotFoundError:  # a checkout that is on the path without being installed
        return "0.0.0+checkout"
