"""Keeps ``gtids.json`` up to date: all GTIDs that the store has read, for a failover of the source."""

from __future__ import annotations

import time
from pathlib import Path

from cdc.base.log import get_logger
from cdc.binlog.gtids import Flavor, GtidSet, parse_state
from cdc.binlog.positions import split_seq
from cdc.capture.start import Start
from cdc.config import DestinationConfig
from cdc.source.resume import gtids_before
from cdc.source.server import Source
from cdc.store.formats.gtids import GtidCheckpoint, gtids_until, lacks_some, record_newest, write_checkpoint

log = get_logger(__name__)

_EVERY_S = 20.0


class GtidRecorder:
    """Records the GTIDs of one store, beside one connection to its source."""

    def __init__(self, config: DestinationConfig, conn: Source, start: Start, last_seq: int | None) -> None:
        """Asks the source for the GTIDs before the store's end if some are not known. ``last_seq`` is the newest seq of
        the store. Raises SourceUnavailableError, SourceRefusedError, CorruptStreamError, DamagedError, StorageError.
        """
        self._store: Path = config.store.path
        self._flavor: Flavor = start.identity.flavor
        self._recorded_at = time.monotonic()
        self._active = True
        seq = start.seq if last_seq is None else last_seq
        is_known = gtids_until(self._store, self._flavor, seq) is not None
        if is_known and not lacks_some(self._store):
            return
        identity = start.identity
        if split_seq(seq).epoch < identity.epoch and identity.start_gtid is not None:
            if is_known:  # the server that is asked from now on has other positions: the next start asks it
                return
            gtids: GtidSet | None = parse_state(identity.start_gtid, self._flavor)
        else:
            gtids = gtids_before(config.source, conn, self._flavor, start.position)
        if gtids is None:
            self._active = is_known
            return
        write_checkpoint(self._store, self._flavor, GtidCheckpoint(seq, gtids), is_complete=True)

    def tick(self) -> None:
        """Records what is visible, if some time has passed. Reads the index entries since then."""
        if time.monotonic() - self._recorded_at >= _EVERY_S:
            self.record()

    def record(self) -> None:
        """Records what is visible. Raises DamagedError, StorageError."""
        self._recorded_at = time.monotonic()
        if self._active:
            record_newest(self._store, self._flavor)
