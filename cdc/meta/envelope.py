"""The envelope of a stored meta: a JSON document with format, version, and a checksum of its body.

The file and the nodes in ZooKeeper share it; ``docs/formats/meta.md`` describes it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import ValidationError

from cdc.base.documents import json_object, require_version
from cdc.base.errors import DamagedError, VersionError
from cdc.base.validation import first_fault

FORMAT = "towpath-meta"
VERSION = 6
NODES_VERSION = VERSION + 1
"""Version of the nodes in ZooKeeper."""
_READ_BEFORE = 1
"""The number of versions before the newest one that are read. They lack the marks of outstanding batches, and in a
subscription's mark the keys that Canal's tools are shown."""


def wrap(body: Any, version: int = VERSION, **further: Any) -> dict[str, Any]:
    """Returns the document around a body."""
    return {"format": FORMAT, "version": version, **further, "checksum": checksum(body), "body": body}


def unwrap(data: bytes, place: str, remedy: str, what: str = "file", newest: int = VERSION) -> dict[str, Any]:
    """Parses and checks a document of the version ``newest``, or of the one before it; returns it with its ``body``.
    Raises DamagedError and VersionError."""
    document = json_object(data, place, remedy)
    if document.get("format") != FORMAT:
        raise DamagedError(f"is not a meta {what}: its format is not {FORMAT}", place=place, remedy=remedy)
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedError(f"has the impossible format version {version!r}", place=place, remedy=remedy)
    require_version(version, newest, place)
    if version < newest - _READ_BEFORE:
        raise VersionError(
            f"has format version {version}; this Towpath reads versions from {newest - _READ_BEFORE} on",
            place=place,
            remedy=remedy,
        )
    recorded, computed = document.get("checksum"), checksum(document.get("body"))
    if recorded != computed:
        raise DamagedError(
            f"its checksum is wrong: it has {recorded!r}, but its body gives {computed!r}", place=place, remedy=remedy
        )
    return document


def invalid(error: ValidationError, within: str, place: str, remedy: str) -> DamagedError:
    """Returns an error for the first fault that pydantic found, with the path of keys to it."""
    return DamagedError(first_fault(error, within=within), place=place, remedy=remedy)


def checksum(body: Any) -> str:
    """Returns the SHA-256 of the body as canonical JSON: sorted keys, no blanks, UTF-8."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
