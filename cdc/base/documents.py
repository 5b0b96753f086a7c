"""The first checks of Towpath's own documents: that they are JSON, and of a version that this Towpath reads."""

from __future__ import annotations

import json
from typing import Any

from cdc.base.errors import DamagedError, VersionError

_REMEDY = "Use the Towpath that wrote it, or a newer one."


def json_object(data: bytes, place: str, remedy: str) -> dict[str, Any]:
    """Parses a JSON object. Raises DamagedError if it is not JSON; JSON that is not an object gives an empty one."""
    try:
        document = json.loads(data)
    except ValueError as error:
        raise DamagedError(f"is not whole JSON: {error}", place=place, remedy=remedy) from None
    return document if isinstance(document, dict) else {}


def require_version(version: object, newest: int, place: str, *, what: str = "", remedy: str = _REMEDY) -> None:
    """Raises VersionError for a version above the newest one that this Towpath knows; ``what`` names the part of the
    place that has it."""
    if isinstance(version, int) and version > newest:
        raise VersionError(
            f"{what}{' ' if what else ''}has format version {version}; this Towpath knows {newest}",
            place=place,
            remedy=remedy,
        )
