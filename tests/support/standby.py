"""A master and a standby in one process, and the comparison of their stores."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

from cdc.base.addresses import Address
from cdc.base.errors import CdcError
from cdc.copies.standby.follower import Follower
from cdc.copies.standby.master import Master
from cdc.copies.standby.role import become_master
from cdc.copies.standby.settings import MasterSettings, Timing
from cdc.copies.standby.snapshot import SMALL_FILES, segment_names
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.formats import layout
from cdc.store.writer.log import LogWriter
from cdc.testing.servers import HOST

QUICK = Timing(heartbeat_s=0.1, dead_s=2.0, greeting_s=5.0, first_pause_s=0.02, longest_pause_s=0.1, poll_s=0.005)
ANY_PORT = Address(HOST, 0)
SECRET = "a secret of more than 16 bytes"


def configure(folder: Path, standby: str, *, flush: str = "sync") -> Path:
    """Writes the configuration of a destination whose store has this ``standby``. Returns the file."""
    file = folder / "conf" / "shop.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "source: {url: 'mysql://cdc@127.0.0.1:1', server_id: 7}\ntables: {include: ['shop\\..*']}\n"
        f"store: {{path: ./store, flush: {flush}, standby: {standby}}}\nmeta: {{path: ./meta}}\napply: {{target: ./lake}}\n"
    )
    return file


def open_master(
    log: LogWriter,
    *,
    destination: str = "shop",
    listen: Address = ANY_PORT,
    role: Literal["sync_master", "async_master"] = "sync_master",
    timeout_s: float = 10.0,
    max_behind_bytes: int = 1 << 28,
    secret: bytes | None = None,
    timing: Timing = QUICK,
) -> Master:
    """Makes a store that is open for writing the master."""
    epoch = become_master(log.path, log.last_seq)
    assert epoch is not None
    master = Master(
        log.path,
        destination=destination,
        epoch=epoch,
        settings=MasterSettings(listen, role, timeout_s, max_behind_bytes, secret, timing),
    )
    if isinstance(log, TransactionLog):
        log.replication = master
    log.on_moved.append(master.moved)
    return master


class Standby:
    """A follower on a thread of its own. ``error`` is the error that ended it, if any."""

    def __init__(
        self,
        path: Path,
        master: Address,
        *,
        destination: str = "shop",
        secret: bytes | None = None,
        timing: Timing = QUICK,
    ) -> None:
        self.path = path
        self.error: CdcError | None = None
        self.follower = Follower(path, destination=destination, master=master, secret=secret, timing=timing)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.follower.run(self._stop)
        except CdcError as error:
            self.error = error

    def wait(self, timeout_s: float = 10.0) -> CdcError | None:
        """Waits until the follower ends by itself, and returns the error that ended it."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the standby still follows after {timeout_s} s")
        return self.error

    def close(self) -> None:
        """Stops the follower."""
        self._stop.set()
        self.wait()


def digests(store: Path) -> dict[str, str]:
    """Returns the SHA-256 of all that a standby copies, by path in the store.

    A segment behind the newest entry does not count, because it may be started again; nor do files that are being
    removed.
    """
    names = segment_names(store)
    folder = layout.segments_folder(store)
    paths = [folder / name for name in names] + [layout.index_path(folder / name) for name in names]
    paths += [store / name for name in SMALL_FILES if (store / name).exists()]
    paths += sorted(layout.schemas_folder(store).glob("*.json"))
    digests_by_path = {}
    for path in paths:
        with suppress(FileNotFoundError):
            digests_by_path[str(path.relative_to(store))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests_by_path
