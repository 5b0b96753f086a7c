"""Properties of Delta tables that a user may set."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

_OF_USERS = frozenset(
    {
        "delta.autoOptimize.autoCompact",
        "delta.autoOptimize.optimizeWrite",
        "delta.checkpoint.writeStatsAsJson",
        "delta.checkpoint.writeStatsAsStruct",
        "delta.checkpointInterval",
        "delta.checkpointPolicy",
        "delta.deletedFileRetentionDuration",
        "delta.enableChangeDataFeed",
        "delta.enableExpiredLogCleanup",
        "delta.enableInCommitTimestamps",
        "delta.isolationLevel",
        "delta.logRetentionDuration",
        "delta.randomizeFilePrefixes",
        "delta.randomPrefixLength",
    }
)
"""Delta's own properties that leave every statement of Towpath its meaning."""
_INSTEAD = {
    "delta.enabledeletionvectors": "set deletion_vectors instead",
    "delta.columnmapping.mode": "Towpath switches column mapping on when a table needs it",
    "delta.enabletypewidening": "Towpath switches type widening on when a table needs it",
    "delta.dataskippingnumindexedcols": "Towpath sets it so that the keys have statistics",
    "delta.appendonly": "merges need tables that can be updated",
    "delta.compatibility.symlinkformatmanifest.enabled": (
        "Delta writes no manifests for tables with column mapping or deletion vectors, and OPTIMIZE fails there"
    ),
    "delta.enableicebergcompatv2": "Delta refuses it for tables that were made without column mapping",
    "delta.enablerowtracking": "Delta refuses the names of its hidden columns when Towpath writes a table anew",
    **dict.fromkeys(
        ("delta.parquet.compression.codec", "delta.targetfilesize", "delta.tunefilesizesforrewrites"),
        "Delta 4.4 does not know it outside Databricks",
    ),
    "delta.universalformat.enabledformats": (
        "UniForm needs Delta's packages for Iceberg or Hudi, which are not published for this Spark"
    ),
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")


def _text(value: Any) -> Any:
    """Lets YAML's booleans and numbers stand for their texts."""
    if not isinstance(value, dict):
        return value
    return {
        key: str(text).lower() if isinstance(text, bool) else str(text) if isinstance(text, int | float) else text
        for key, text in value.items()
    }


def _allowed(properties: dict[str, str]) -> dict[str, str]:
    for name in properties:
        lower = name.lower()
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a property; use letters, digits, dots, dashes, underscores")
        if lower.startswith("towpath."):
            raise ValueError(f"{name}: Towpath keeps its own records under this name; remove it")
        if lower.startswith("option."):
            raise ValueError(f"{name}: Spark takes such a property for an option of the table; remove it")
        if lower in _INSTEAD:
            raise ValueError(f"{name}: {_INSTEAD[lower]}; remove it")
        if lower.startswith("delta.") and name not in _OF_USERS:
            raise ValueError(f"{name} is not among Delta's properties that may be set: {', '.join(sorted(_OF_USERS))}")
    return properties


Properties = Annotated[dict[str, str], BeforeValidator(_text), AfterValidator(_allowed)]
"""Properties of a Delta table by their names."""
