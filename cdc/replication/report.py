"""``standby.json``: what a master or a standby last said of itself, for ``cdc status``. Nothing depends on it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from cdc.durable import replace_file
from cdc.errors import DamagedError
from cdc.store.formats.layout import read_json, require_version

FILE_NAME = "standby.json"
FRESH_S = 5.0
"""An older one was left by a process that is gone."""


@dataclass(frozen=True)
class PeerReport:
    """The other side."""

    address: str
    connected: bool
    """The stream flows."""
    seq: int
    """A standby's: what it has confirmed. A master's: the newest it has told of."""
    behind_bytes: int


@dataclass(frozen=True)
class RoleReport:
    role: Literal["sync_master", "async_master", "standby"]
    term: int
    pid: int
    time_us: int
    """When it was written, µs since 1970, this machine's clock."""
    peers: tuple[PeerReport, ...]

    @property
    def is_fresh(self) -> bool:
        return time.time_ns() // 1000 - self.time_us < FRESH_S * 1e6


def write_report(store: Path, report: RoleReport) -> None:
    document = {"version": 1, **asdict(report)}
    replace_file(store / FILE_NAME, json.dumps(document).encode(), durable=False)


def read_report(store: Path) -> RoleReport | None:
    """None where there never was one. Raises DamagedError, VersionError."""
    path = store / FILE_NAME
    found = read_json(path)
    if found is None:
        return None
    require_version(found, path)
    try:
        peers = tuple(
            PeerReport(p["address"], bool(p["connected"]), int(p["seq"]), int(p["behind_bytes"]))
            for p in found["peers"]
        )
        return RoleReport(found["role"], int(found["term"]), int(found["pid"]), int(found["time_us"]), peers)
    except (KeyError, TypeError, ValueError):
        raise DamagedError(
            "is not a report of a master or standby",
            place=str(path),
            remedy="Remove it: it is written anew every second, and nothing depends on it.",
        ) from None
