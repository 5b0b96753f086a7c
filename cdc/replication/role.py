"""Who is the master, and for the how manieth time: ``term.json`` in the store's folder.

A term is one mastership: a number that grows with each take-over, and an identifier of its own, since two standbys may
take over at once and both count to the same number. A standby keeps its master's. So an old master is known as such by
everybody who has heard of a newer one (Raft's terms, Kafka's leader epochs).
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from cdc.durable import replace_file
from cdc.errors import DamagedError, IdentityError
from cdc.log import get_logger
from cdc.store.formats.layout import read_json, require_version

log = get_logger(__name__)

FILE_NAME = "term.json"
_REMEDY = "Remove it from the store that shall follow; of the one that shall be the master, restore it from a copy."


@dataclass(frozen=True)
class Term:
    """A mastership, and this store's part in it."""

    term: int
    mastership: str
    """32 hexadecimal digits, new with each take-over."""
    state: Literal["master", "standby"]
    since_seq: int = 0
    """What the store had when the mastership began."""
    compared: str = ""
    """A standby's: all segments before this one are known to be the master's, byte for byte."""


def read_term(store: Path) -> Term | None:
    """None in a store that never had to do with a standby. Raises DamagedError, VersionError, StorageError."""
    path = store / FILE_NAME
    found = read_json(path)
    if found is None:
        return None
    require_version(found, path)
    kinds = {"term": int, "mastership": str, "state": str, "since_seq": int, "compared": str}
    if not isinstance(found, dict) or any(not isinstance(found.get(key), kind) for key, kind in kinds.items()):
        raise DamagedError("is not a term of mastership", place=str(path), remedy=_REMEDY)
    if found["state"] not in ("master", "standby") or found["term"] < 1:
        raise DamagedError("is not a term of mastership", place=str(path), remedy=_REMEDY)
    return Term(**{key: found[key] for key in kinds})


def write_term(store: Path, term: Term) -> None:
    """Durably."""
    replace_file(store / FILE_NAME, json.dumps({"version": 1, **asdict(term)}, indent=1).encode() + b"\n")


def become_master(store: Path, last_seq: int | None, *, always: bool = True) -> Term | None:
    """A writer begins to write. A store that followed another one takes over, with the next term, before anything is
    put; with ``always`` one that has no term yet gets the first. The caller holds the store's lock. Raises
    DamagedError."""
    known = read_term(store)
    if known is not None and known.state == "master":
        return known
    if known is None and not always:
        return None
    number = 1 if known is None else known.term + 1
    term = Term(number, secrets.token_hex(16), "master", last_seq or 0)
    write_term(store, term)
    if known is not None:
        log.warning("a standby takes over", store=str(store), term=number, last_seq=last_seq)
    return term


def become_standby(store: Path, master: Term) -> Term:
    """Everything that the master never had is cut off: the store follows it from here on."""
    term = replace(master, state="standby", compared="")
    write_term(store, term)
    return term


def require_follows(mine: Term | None, master: Term) -> None:
    """May a store with this term follow that master? Both sides ask, the master about the standby, too.

    Raises IdentityError: the master is an old one, or there are two.
    """
    if mine is None or mine.term < master.term:
        return
    if mine.term > master.term:
        raise IdentityError(
            f"the master is in term {master.term}, and the standby has already seen term {mine.term}:"
            " another store has taken over from this master",
            remedy="Stop the old master, and let it follow the new one: role: standby, and the new one's address.",
        )
    if mine.mastership != master.mastership:
        raise IdentityError(
            f"two stores have taken over in the same term {mine.term}",
            remedy="Decide which one stays the master; stop the other one, remove its term.json, and let it follow.",
        )


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
