"""The role of a store in replication: its leadership epoch, and the last status that its process wrote.

The leadership epoch says how often the store has changed its master. It has a number that grows with each take-over,
and a random identifier, because two standbys may take over at once and reach the same number. A standby adopts its
master's epoch. So every store that has heard of a newer master refuses the old one (as with Raft's terms and Kafka's
leader epochs). The epoch is in ``term.json``, where it is called a term; the status is in ``standby.json``.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from cdc.base.errors import DamagedError, IdentityError
from cdc.base.log import get_logger
from cdc.disk.durable import replace_file
from cdc.store.formats.layout import read_document

log = get_logger(__name__)

EPOCH_FILE = "term.json"
STATUS_FILE = "standby.json"
FRESH_S = 5.0
"""A status that is older was left behind by a process that has ended."""

_EPOCH_REMEDY = (
    "On the store that is to follow, remove the file. On the store that is to be the master, restore it from a copy."
)
_STATUS_REMEDY = "Remove the file: it is written again every second, and nothing depends on it."


@dataclass(frozen=True)
class LeadershipEpoch:
    """One period under one master, and this store's part in it."""

    number: int
    """Grows by 1 with each take-over; ``term`` in the file and on the wire."""
    id: str
    """32 hexadecimal digits, new with each take-over; ``mastership`` in the file and on the wire."""
    state: Literal["master", "standby"]
    since_seq: int = 0
    """The last seq in the store when the epoch began."""
    compared: str = ""
    """For a standby: all segments before this one are known to equal the master's, byte for byte."""


def read_epoch(store: Path) -> LeadershipEpoch | None:
    """Returns the store's leadership epoch; None if the store never was a master or a standby.

    Raises DamagedError, VersionError, StorageError.
    """
    path = store / EPOCH_FILE
    document = read_document(path, _EPOCH_REMEDY)
    if document is None:
        return None
    kinds = {"term": int, "mastership": str, "state": str, "since_seq": int, "compared": str}
    is_sound = isinstance(document, dict) and all(isinstance(document.get(key), kind) for key, kind in kinds.items())
    if not is_sound or document["state"] not in ("master", "standby") or document["term"] < 1:
        raise DamagedError("is not a sound leadership epoch (term)", place=str(path), remedy=_EPOCH_REMEDY)
    return LeadershipEpoch(
        document["term"], document["mastership"], document["state"], document["since_seq"], document["compared"]
    )


def write_epoch(store: Path, epoch: LeadershipEpoch) -> None:
    """Writes the store's leadership epoch durably."""
    document = {
        "version": 1,
        "term": epoch.number,
        "mastership": epoch.id,
        "state": epoch.state,
        "since_seq": epoch.since_seq,
        "compared": epoch.compared,
    }
    replace_file(store / EPOCH_FILE, json.dumps(document, indent=1).encode() + b"\n")


def become_master(store: Path, last_seq: int | None, *, always: bool = True) -> LeadershipEpoch | None:
    """Makes this store the master; call it before a writer puts anything. The caller holds the store's lock.

    A store that was a standby takes over with the next epoch. A store without an epoch gets the first one if
    ``always`` is set, and stays without one otherwise. Raises DamagedError.
    """
    current = read_epoch(store)
    if current is not None and current.state == "master":
        return current
    if current is None and not always:
        return None
    number = 1 if current is None else current.number + 1
    epoch = LeadershipEpoch(number, secrets.token_hex(16), "master", last_seq or 0)
    write_epoch(store, epoch)
    if current is not None:
        log.warning("standby takes over as master", store=str(store), leadership_epoch=number, last_seq=last_seq)
    return epoch


def become_standby(store: Path, master: LeadershipEpoch) -> LeadershipEpoch:
    """Makes this store a standby in the master's epoch. Call it after removing everything that the master never had."""
    epoch = replace(master, state="standby", compared="")
    write_epoch(store, epoch)
    return epoch


def require_follows(own_epoch: LeadershipEpoch | None, master: LeadershipEpoch) -> None:
    """Checks that a store with the epoch ``own_epoch`` may follow that master. Both sides check it.

    Raises IdentityError if the master is an old one, or if two stores have taken over in the same epoch.
    """
    if own_epoch is None or own_epoch.number < master.number:
        return
    if own_epoch.number > master.number:
        raise IdentityError(
            f"the master is in leadership epoch {master.number}, but the standby has already seen epoch "
            f"{own_epoch.number}: another store has taken over from this master",
            remedy="Stop the old master, and let it follow the new one: role: standby, and the new one's address.",
        )
    if own_epoch.id != master.id:
        raise IdentityError(
            f"two stores have taken over in the same leadership epoch {own_epoch.number}",
            remedy="Decide which one stays the master. Stop the other one, remove its term.json, and let it follow.",
        )


@dataclass(frozen=True)
class PeerStatus:
    """The other side of a connection."""

    address: str
    connected: bool
    """Whether the stream is flowing."""
    seq: int
    """For a standby: the last seq that it has confirmed. For a master: the newest seq that it has announced."""
    behind_bytes: int


@dataclass(frozen=True)
class RoleStatus:
    """The status that a master or a standby last wrote, for ``cdc status``. Nothing depends on it."""

    role: Literal["sync_master", "async_master", "standby"]
    term: int
    """The number of the leadership epoch; 0 if there is none yet."""
    pid: int
    time_us: int
    """When it was written: µs since 1970 by this machine's clock."""
    peers: tuple[PeerStatus, ...]

    @property
    def is_fresh(self) -> bool:
        """Whether the process that wrote it is probably still running."""
        return time.time_ns() // 1000 - self.time_us < FRESH_S * 1e6


def write_status(store: Path, status: RoleStatus) -> None:
    """Replaces the store's status; not synced to disk."""
    document = {"version": 1, **asdict(status)}
    replace_file(store / STATUS_FILE, json.dumps(document).encode(), durable=False)


def read_status(store: Path) -> RoleStatus | None:
    """Returns the last status; None if there never was one. Raises DamagedError, VersionError."""
    path = store / STATUS_FILE
    document = read_document(path, _STATUS_REMEDY)
    if document is None:
        return None
    try:
        peers = tuple(
            PeerStatus(p["address"], bool(p["connected"]), int(p["seq"]), int(p["behind_bytes"]))
            for p in document["peers"]
        )
        return RoleStatus(
            document["role"], int(document["term"]), int(document["pid"]), int(document["time_us"]), peers
        )
    except (KeyError, TypeError, ValueError):
        raise DamagedError("is not the status of a master or standby", place=str(path), remedy=_STATUS_REMEDY) from None
