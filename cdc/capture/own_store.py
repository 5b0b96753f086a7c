"""The store of one server among several (``server.ha``): where it begins, and when it has to begin anew. A store in
memory begins where its readers are, too.

Each server has a store of its own. All have the same transactions with the same seqs, because both come from the
source; but they begin and end at different positions. A server that takes over reads the source from the oldest
reader's position on, unless its store has what the readers need already. A store that cannot be continued is set
aside: everything in it was acked, or is read again.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import ConfigError, CutOffError
from cdc.base.log import get_logger
from cdc.binlog.positions import format_seq, make_file_name, split_seq
from cdc.disk.durable import replace_file, storage_errors, sync_folder
from cdc.source.server import Source, binlog_files
from cdc.store.formats import layout
from cdc.store.formats.state import StoreLock
from cdc.store.reader.reader import StoreReader

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.meta import State

OWNER_FILE = "server.json"
"""The file in a store that names the server which it belongs to."""
_VERSION = 1
_REMOVED = ".removed-"
"""In the names of stores that are being removed, behind the store's own name."""
_log = get_logger(__name__)


@dataclass(frozen=True)
class _Files:
    """The binlog files of the source, and the epoch whose positions they have."""

    sizes: dict[str, int]
    epoch: int
    base_name: str

    def has(self, seq: int) -> bool:
        """Whether the source can be read from the position of a seq on."""
        parts = split_seq(seq)
        size = self.sizes.get(make_file_name(self.base_name, parts.file_number))
        return parts.epoch == self.epoch and size is not None and parts.offset <= size


def find_begin(state: State, conn: Source, *, in_memory: bool = False) -> int | None:
    """Returns the seq after which a store that is empty has to begin: the oldest position of a reader that the source
    still has. A reader before it is refused when it reads. If the source has none of them, it is the oldest one, which
    is then refused with what the server has. Without readers it is where the destination's first store began. None:
    nothing was ever captured, or the store is ``in_memory`` and nobody reads it: it begins as configured."""
    source = state.source
    if source is None or (in_memory and not state.subscriptions):
        return None
    first = source.begins_seq or 0
    readers = [subscription.position() or first for subscription in state.subscriptions.values()]
    kept = [
        p.keep_seq
        for subscription in state.subscriptions.values()
        for p in subscription.parked.values()
        if p.keep_seq is not None
    ]
    needed = sorted(seq for seq in (*readers, *kept) if seq) or ([first] if first else [])
    if not needed:
        return None
    files = _Files({f.name: f.size_bytes for f in binlog_files(conn)}, source.epoch, source.base_name)
    return next((seq for seq in needed if files.has(seq)), needed[0])


def prepare(config: DestinationConfig, state: State, conn: Source) -> None:
    """Sets the store aside if it cannot be continued as the readers need it. The store is not open yet.

    Raises ConfigError if it belongs to another server, LeaseHeldError if it is being written, and what reading it
    raises.
    """
    folder = config.store.path
    if folder.is_dir() and any(folder.iterdir()):
        _require_own(config, folder)
        begin = find_begin(state, conn)
        reason = None if begin is None else _fault(StoreReader(folder), begin, state, conn)
        if reason is not None:
            _set_aside(folder, reason)
    if folder.parent.is_dir():
        _remove_older(folder)


def _fault(reader: StoreReader, begin: int, state: State, conn: Source) -> str | None:
    """Returns why a store cannot be continued; None if it can."""
    assert state.source is not None
    last, beginning = reader.last_seq() if reader.exists() else None, reader.beginning()
    if last is None or beginning is None:
        return None  # empty: it begins where the readers are
    files = _Files({f.name: f.size_bytes for f in binlog_files(conn)}, state.source.epoch, state.source.base_name)
    if not files.has(begin):
        return None  # nothing better can be read from this source; its error says so
    if split_seq(last).epoch != state.source.epoch:
        return "it ends in the binlog of another server"
    if beginning.seq > begin:
        return f"it begins at {format_seq(beginning.seq)}, behind a reader at {format_seq(begin)}"
    try:
        reader.require_kept(begin)
    except CutOffError:
        return f"its retention has removed what a reader at {format_seq(begin)} needs"
    if last < begin and not files.has(last):
        return f"the source has purged what follows its end, {format_seq(last)}"
    return None


def _set_aside(folder: Path, reason: str) -> None:
    """Moves a store away, in place of the one that was moved away before it, which is removed later: a large one takes
    seconds to remove, and readers wait for this server."""
    aside = folder.with_name(f"{folder.name}.aside")
    lock = StoreLock(folder)
    try:
        with storage_errors(folder):
            if aside.exists():
                aside.rename(folder.with_name(f"{folder.name}{_REMOVED}{secrets.token_hex(4)}"))
            folder.rename(aside)
            sync_folder(folder.parent)
    finally:
        lock.release()
    _log.warning("store set aside: this server begins a new one", store=str(folder), moved_to=str(aside), reason=reason)


def _remove_older(folder: Path) -> None:
    """Removes, in the background, stores that were moved away twice, those of earlier processes included."""
    name = re.compile(re.escape(f"{folder.name}{_REMOVED}") + "[0-9a-f]{8}")
    older = [aside for aside in folder.parent.iterdir() if name.fullmatch(aside.name)]

    def remove() -> None:
        for aside in older:
            try:
                shutil.rmtree(aside)
            except OSError as error:
                _log.warning("store that was set aside cannot be removed", store=str(aside), reason=str(error))

    if older:
        threading.Thread(target=remove, name="remove-older-stores", daemon=True).start()


def _require_own(config: DestinationConfig, folder: Path) -> None:
    path = folder / OWNER_FILE
    document = layout.read_document(path, "Remove it, if no other server uses the store.")
    owner = document.get("address") if isinstance(document, dict) else None
    if document is not None and owner != config.server.ha.address:
        raise ConfigError(
            f"this store belongs to the server {owner!r} of the cluster, and this one is "
            f"{config.server.ha.address!r}; servers cannot share a store",
            place=str(folder),
            remedy=f"Give this server a store.path of its own, on its own disk. If it is the same machine under a new "
            f"address, remove {OWNER_FILE} there.",
        )


def claim(config: DestinationConfig) -> None:
    """Records that the store belongs to this server. The caller is its writer."""
    path = config.store.path / OWNER_FILE
    if not path.exists():
        replace_file(path, json.dumps({"version": _VERSION, "address": config.server.ha.address}).encode())
