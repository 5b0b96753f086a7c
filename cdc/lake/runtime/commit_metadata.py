"""The user metadata of commits to Delta tables: docs/formats/user_metadata.md has the keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cdc.base.run_identity import current_run


def commit_metadata(entry: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Returns an entry of the ledger, or none, with who commits it, as the value of a Spark setting."""
    run = current_run()
    document = dict(entry) if run is None else {**entry, "run": run.document}
    return setting_value(json.dumps(document, ensure_ascii=False))


def setting_value(json_text: str) -> str:
    """Returns the same JSON document for use as the value of a Spark setting.

    Spark replaces ``${name}`` in such values whenever it reads them, whatever spark.sql.variable.substitute says.
    """
    return json_text.replace("${", "\\u0024{")
