"""What every stored piece of a meta says of itself: format, version, and a checksum of its body.

The rules are those of ``docs/formats/meta.md``, for the file and for the nodes in ZooKeeper alike.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import ValidationError

from cdc.errors import DamagedError, VersionError

FORMAT = "towpath-meta"
VERSION = 2
"""2: a subscription has ``since_seq``, ``gaps``, ``tables`` and ``mark``. Version 1 is read; what it lacks is not
known."""


def wrap(body: Any, **further: Any) -> dict[str, Any]:
    """The document around a body."""
    return {"format": FORMAT, "version": VERSION, **further, "checksum": checksum(body), "body": body}


def unwrap(data: bytes, place: str, remedy: str, what: str = "file") -> dict[str, Any]:
    """The document, checked, with its ``body``. Raises DamagedError, saying what is wrong, and VersionError."""
    document = read_object(data, place, remedy)
    if document.get("format") != FORMAT:
        raise DamagedError(f"is not a meta {what}: it does not say format {FORMAT}", place=place, remedy=remedy)
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedError(f"has the impossible format version {version!r}", place=place, remedy=remedy)
    if version > VERSION:
        raise VersionError(
            f"has format version {version}; this Towpath knows {VERSION}",
            place=place,
            remedy="Update Towpath on this machine.",
        )
    said, found = document.get("checksum"), checksum(document.get("body"))
    if said != found:
        raise DamagedError(
            f"its checksum is wrong: it says {said!r}, its body has {found!r}", place=place, remedy=remedy
        )
    return document


def read_object(data: bytes, place: str, remedy: str) -> dict[str, Any]:
    """A JSON object. Raises DamagedError; what is whole but no object is left to :func:`unwrap`'s other checks."""
    try:
        document = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DamagedError(f"is not whole: {error}", place=place, remedy=remedy) from None
    return document if isinstance(document, dict) else {}


def invalid(error: ValidationError, within: str, place: str, remedy: str) -> DamagedError:
    """What pydantic found first, with the path of keys that leads there."""
    first = error.errors()[0]
    where = ".".join([within, *(str(step) for step in first["loc"])])
    return DamagedError(f"{where}: {first['msg']}", place=place, remedy=remedy)


def checksum(body: Any) -> str:
    """SHA-256 over the body as canonical JSON: sorted keys, no blanks, UTF-8."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
