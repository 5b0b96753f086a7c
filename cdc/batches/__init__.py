"""The batch protocol: get, ack, rollback, leases and manifests; the rules between store and meta.

Imports :mod:`cdc.store` and :mod:`cdc.meta`; pipeline, commands and the Airflow package import it. Spark jobs import
the manifest and its results. It promises that a batch has one owner at a time, that batches are acked in order, and
that transactions are handed out again until they are acked, whichever process was killed in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdc.batches.lease import Lease
    from cdc.batches.manifest import Manifest, TableResult
    from cdc.batches.service import BatchService

__all__ = ["BatchService", "Lease", "Manifest", "TableResult"]

_HOME = {"BatchService": "service", "Lease": "lease", "Manifest": "manifest", "TableResult": "manifest"}


def __getattr__(name: str) -> Any:
    """Loads the names above on first use, because an executor that reads a manifest needs no store."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
