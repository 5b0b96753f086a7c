"""The standby: connects to the master, reconciles with it, and copies its store. After RocketMQ's ``HAClient``."""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from pathlib import Path

from cdc.base.addresses import Address
from cdc.base.errors import CdcError, CorruptStreamError, PeerUnavailableError
from cdc.base.log import get_logger
from cdc.base.version import package_version
from cdc.binlog.entry import ENTRY_SIZE
from cdc.copies.standby.copy import SYNC_BYTES, Copy
from cdc.copies.standby.protocol import (
    DATA,
    ENTRIES,
    FILE,
    HEARTBEAT,
    MAX_PAYLOAD,
    REPORT,
    Channel,
    Compare,
    Compared,
    Fetch,
    Follow,
    FrameKind,
    Hello,
    StandbyFrame,
    Welcome,
    expect,
    new_nonce,
    parse_message,
    raise_refusal,
    refusal,
    require_known_formats,
    require_nonce,
    sign_message,
    verify_message,
)
from cdc.copies.standby.reconcile import ReconcilePlan, plan_reconcile, truncate
from cdc.copies.standby.role import (
    LeadershipEpoch,
    PeerStatus,
    RoleStatus,
    become_standby,
    read_epoch,
    require_follows,
    write_status,
)
from cdc.copies.standby.settings import DEFAULT_TIMING, Timing
from cdc.copies.standby.snapshot import EntryKind, SegmentSnapshot, read_small, small_files
from cdc.disk.durable import remove_file
from cdc.disk.permissions import Permissions
from cdc.store.formats import layout
from cdc.store.formats.checkpoint import CheckpointWriter
from cdc.store.formats.index import STATS_FILE as COUNTS
from cdc.store.formats.missing import kept_names, read_damaged
from cdc.store.formats.state import StoreLock, TableNumbers
from cdc.store.reader.reader import StoreReader
from cdc.store.writer.log import RelayLog

log = get_logger(__name__)

_STATUS_EVERY_S = 1.0


class Follower:
    """Follows a master until it is told to stop. The store is locked meanwhile: end the follower before a take-over."""

    def __init__(
        self,
        store: Path,
        *,
        destination: str,
        master: Address,
        secret: bytes | None = None,
        segment_bytes: int = 268435456,
        timing: Timing = DEFAULT_TIMING,
        permissions: Permissions = "private",
    ) -> None:
        """Recovers the store and locks it. Raises StorageError, DamagedError, LeaseHeldError."""
        self._store = store
        self._destination = destination
        self._master = master
        self._secret = secret
        self._timing = timing
        # A crash may have left an incomplete end. It is repaired as a writer would do it: should the master be lost,
        # this copy is all there is.
        RelayLog(store, destination=destination, segment_bytes=segment_bytes, permissions=permissions).close()
        self._lock = StoreLock(store)
        self._checkpoints = CheckpointWriter(store, lambda: len(TableNumbers(store).names))
        names = kept_names(store)
        self._open_checkpoint(names[-1] if names else None)
        self._copy: Copy | None = None
        self._peer = PeerStatus(str(master), connected=False, seq=0, behind_bytes=0)
        self._status_at = 0.0
        self.last_seq = StoreReader(store).last_seq() or 0
        """Seq of the newest visible entry."""

    def run(self, stop: threading.Event) -> None:
        """Follows until ``stop`` is set, and connects again for ever when the connection breaks.

        Raises only errors that connecting again cannot solve.
        """
        pause_s = self._timing.first_pause_s
        try:
            while not stop.is_set():
                began = time.monotonic()
                try:
                    self._session(stop)
                except (PeerUnavailableError, CorruptStreamError) as error:
                    if time.monotonic() - began > self._timing.dead_s:
                        pause_s = self._timing.first_pause_s
                    if not stop.is_set():
                        log.warning("not following the master; connecting again", error=str(error), in_s=pause_s)
                self._write_status(connected=False)
                if stop.wait(pause_s):
                    break
                pause_s = min(2 * pause_s, self._timing.longest_pause_s)
        finally:
            self._lock.release()

    # --- a connection

    def _session(self, stop: threading.Event) -> None:
        try:
            connection = socket.create_connection((self._master.host, self._master.port), self._timing.greeting_s)
        except OSError as error:
            raise PeerUnavailableError(
                f"cannot be reached: {error.strerror or error}", place=f"master {self._master}"
            ) from None
        channel = Channel(connection, send_timeout_s=self._timing.dead_s)
        try:
            try:
                self._follow(channel, stop)
            except CdcError as error:
                if not isinstance(error, PeerUnavailableError):
                    self._refuse(channel, error)
                raise
        finally:
            channel.close()

    def _refuse(self, channel: Channel, error: CdcError) -> None:
        try:
            channel.send(FrameKind.REFUSE, refusal(error))
        except PeerUnavailableError as second:
            log.info("the refusal did not reach the master", error=str(second))

    def _follow(self, channel: Channel, stop: threading.Event) -> None:
        welcome, epoch = self._greet(channel)
        plan = self._reconcile(channel, welcome, epoch)
        channel.send(FrameKind.FOLLOW, Follow(have=plan.have).model_dump_json().encode())
        log.info("following the master", master=channel.peer, leadership_epoch=welcome.term, last_seq=self.last_seq)
        copy = self._copy = Copy(self._store, self._checkpoints, channel.peer, self.last_seq)
        in_order = False
        try:
            self._receive(channel, copy, stop)
            in_order = True
        finally:
            self._end(copy, in_order=in_order)

    def _end(self, copy: Copy, *, in_order: bool) -> None:
        """Closes the copy after a connection. Whole transactions stay."""
        copy.close(in_order=in_order)
        self.last_seq = copy.last_seq

    def _greet(self, channel: Channel) -> tuple[Welcome, LeadershipEpoch | None]:
        """Returns the master's welcome, and this store's own epoch so far."""
        wait_s = self._timing.greeting_s
        nonce = require_nonce(expect(channel, FrameKind.CHALLENGE, wait_s), channel.peer)
        epoch = read_epoch(self._store)
        own_nonce = new_nonce()
        channel.send(FrameKind.HELLO, sign_message(self._hello(own_nonce, epoch), b"hello", nonce, self._secret))
        channel.frames.max_payload = MAX_PAYLOAD
        data = expect(channel, FrameKind.WELCOME, wait_s)
        welcome = parse_message(
            Welcome, verify_message(data, b"welcome", own_nonce, self._secret, channel.peer), channel.peer
        )
        require_known_formats(welcome.formats, channel.peer)
        require_follows(epoch, LeadershipEpoch(welcome.term, welcome.mastership, "master"))
        return welcome, epoch

    def _hello(self, nonce: bytes, epoch: LeadershipEpoch | None) -> Hello:
        names = kept_names(self._store)
        newest = SegmentSnapshot(self._store, names[-1]) if names else None
        crcs = {name: read_small(self._store, name) for name in small_files(self._store)}
        return Hello(
            destination=self._destination,
            nonce=nonce.hex(),
            towpath=package_version(),
            term=0 if epoch is None else epoch.number,
            state="none" if epoch is None else epoch.state,
            mastership="" if epoch is None else epoch.id,
            segment=names[-1] if names else "",
            size_bytes=newest.end() if newest is not None else 0,
            last_seq=self.last_seq,
            tail_crc=int(newest.entries["crc"][-1]) if newest is not None and len(newest.entries) else 0,
            files={name: zlib.crc32(content) for name, content in crcs.items() if content is not None},
        )

    def _reconcile(self, channel: Channel, welcome: Welcome, epoch: LeadershipEpoch | None) -> ReconcilePlan:
        """Truncates what the master never had, and makes the store its standby."""

        def ask(segment: str, start: int, stop: int, kind: EntryKind) -> Compared:
            question = Compare(segment=segment, start=start, stop=stop, of=kind)
            channel.send(FrameKind.COMPARE, question.model_dump_json().encode())
            return parse_message(Compared, expect(channel, FrameKind.COMPARED, self._timing.dead_s), channel.peer)

        same = epoch is not None and epoch.id == welcome.mastership
        # If data loss was accepted at either side, the index of a segment that was equal may have changed since.
        has_loss = welcome.given_up or bool(read_damaged(self._store))
        compared = epoch.compared if epoch is not None and same and not has_loss else ""
        plan = plan_reconcile(self._store, welcome.segments, welcome.removed_seq, ask, compared)
        fetched = {name: self._fetch(channel, name, *numbers) for name, numbers in plan.fetch.items()}
        changed = self._truncate(plan, fetched, f"leadership epoch {welcome.term} of {channel.peer}")
        if not same or epoch is None or epoch.state != "standby" or changed:
            # These files of capture and retention describe the store as it was before.
            for name in ("capture.json", COUNTS):
                remove_file(self._store / name)
            become_standby(self._store, LeadershipEpoch(welcome.term, welcome.mastership, "standby"))
        return plan

    def _fetch(self, channel: Channel, segment: str, start: int, stop: int) -> bytes:
        """Fetches a range of the master's index entries."""
        channel.send(FrameKind.FETCH, Fetch(segment=segment, start=start, stop=stop).model_dump_json().encode())
        fetched = b""
        while len(fetched) < (stop - start) * ENTRY_SIZE:
            payload = expect(channel, FrameKind.ENTRIES, self._timing.dead_s)
            if payload[: ENTRIES.size] != ENTRIES.pack(start + len(fetched) // ENTRY_SIZE):
                raise CorruptStreamError("received entries that were not asked for", place=channel.peer)
            fetched += payload[ENTRIES.size :]
        return fetched

    def _truncate(self, plan: ReconcilePlan, fetched: dict[str, bytes], why: str) -> bool:
        """Carries out the plan; returns whether transactions were removed."""
        # First of all, because the checkpoint must not cover what is removed.
        self._open_checkpoint(plan.have[0].segment if plan.have else None)
        lost = truncate(self._store, plan, fetched, why)
        self.last_seq = StoreReader(self._store).last_seq() or 0
        return bool(lost)

    def _open_checkpoint(self, segment: str | None) -> None:
        """Records in the store that a writer is at work, and where a take-over has to begin to verify (None: all)."""
        path = None if segment is None else layout.segments_folder(self._store) / segment
        self._checkpoints.opened(path, 0, empty=True, finished=False)

    # --- the stream

    def _receive(self, channel: Channel, copy: Copy, stop: threading.Event) -> None:
        self._send_report(channel, copy)
        channel.received_at = time.monotonic()
        sent_at = time.monotonic()
        while not stop.is_set():
            frame = channel.receive(min(0.2, self._timing.heartbeat_s))
            received = frame is not None
            while frame is not None:
                self._take_frame(frame, channel.peer, copy)
                frame = channel.receive(0) if copy.unsynced_bytes < SYNC_BYTES else None
            now = time.monotonic()
            if received:
                copy.commit()
                self.last_seq = copy.last_seq
            if received or now - sent_at >= self._timing.heartbeat_s:
                self._send_report(channel, copy)
                sent_at = now
            if now - self._status_at >= _STATUS_EVERY_S:
                self._write_status(connected=True)
            if now - channel.received_at > self._timing.dead_s:
                raise PeerUnavailableError(f"silent for {self._timing.dead_s:g} s", place=channel.peer)

    def _take_frame(self, frame: StandbyFrame, peer: str, copy: Copy) -> None:
        payload = frame.payload
        if frame.kind is FrameKind.DATA and len(payload) > DATA.size:
            copy.data(DATA.unpack_from(payload)[0], memoryview(payload)[DATA.size :])
        elif frame.kind is FrameKind.ENTRIES and len(payload) > ENTRIES.size:
            copy.entries(ENTRIES.unpack_from(payload)[0], payload[ENTRIES.size :])
        elif frame.kind is FrameKind.SEGMENT:
            copy.segment(_name(payload, peer))
        elif frame.kind in (FrameKind.FILE, FrameKind.FILE_PART) and len(payload) > FILE.size:
            (length,) = FILE.unpack_from(payload)
            name = _name(payload[FILE.size : FILE.size + length], peer)
            copy.file(name, payload[FILE.size + length :], whole=frame.kind is FrameKind.FILE)
        elif frame.kind is FrameKind.FORGET:
            copy.forget(_name(payload, peer))
        elif frame.kind is FrameKind.HEARTBEAT and len(payload) == HEARTBEAT.size:
            seq, behind_bytes = HEARTBEAT.unpack(payload)
            self._peer = PeerStatus(str(self._master), connected=True, seq=seq, behind_bytes=behind_bytes)
        else:
            raise_refusal(frame, peer)
            raise CorruptStreamError(
                f"received a {frame.kind.name} frame of {len(payload)} bytes in the stream", place=peer
            )

    def _send_report(self, channel: Channel, copy: Copy) -> None:
        name, offset = copy.position
        channel.send(FrameKind.REPORT, REPORT.pack(copy.last_seq, offset), name.encode())

    def _write_status(self, *, connected: bool) -> None:
        """Writes the status for ``cdc status``."""
        self._status_at = time.monotonic()
        epoch = read_epoch(self._store)
        peer = PeerStatus(str(self._master), connected, self._peer.seq, self._peer.behind_bytes)
        number = 0 if epoch is None else epoch.number
        try:
            write_status(self._store, RoleStatus("standby", number, os.getpid(), time.time_ns() // 1000, (peer,)))
        except CdcError as error:
            log.warning("the standby's status could not be written", error=str(error))


def _name(data: bytes, peer: str) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise CorruptStreamError("received a name that is not ASCII", place=peer) from None
