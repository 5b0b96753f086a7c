"""Towpath: changes of MySQL and MariaDB into Delta Lake tables, in batches that Airflow schedules.

Each package below states what lives in it, what may import it, and what it promises. Importing ``cdc`` itself
loads nothing else.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("towpath")
except PackageNotFoundError:  # a checkout that is on the path without being installed
    __version__ = "0.0.0+checkout"

__all__ = ["__version__"]
