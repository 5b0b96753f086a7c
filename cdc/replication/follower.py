"""The standby's side: connects to the master, agrees with it, and copies its store. RocketMQ's ``HAClient``."""

from __future__ import annotations

import os
import socket
import threading
import time
import zlib
from pathlib import Path

from cdc import __version__
from cdc.binlog.entry import ENTRY_SIZE
from cdc.durable import remove_file
from cdc.errors import CdcError, CorruptStreamError, PeerUnavailableError
from cdc.log import get_logger
from cdc.permissions import Permissions
from cdc.replication.copy import SYNC_BYTES, Copy
from cdc.replication.epoch import Term, become_standby, read_term, require_follows
from cdc.replication.frames import MAX_PAYLOAD, Channel, Frame, Kind
from cdc.replication.messages import (
    DATA,
    ENTRIES,
    FILE,
    HEARTBEAT,
    REPORT,
    Compare,
    Compared,
    Fetch,
    Follow,
    Hello,
    Welcome,
    expect,
    new_nonce,
    parse,
    refusal,
    require,
    require_known,
    require_nonce,
    sealed,
    unsealed,
)
from cdc.replication.reconcile import Plan, plan
from cdc.replication.report import PeerReport, RoleReport, write_report
from cdc.replication.settings import DEFAULT_TIMING, Address, Timing
from cdc.replication.snapshot import Sort, View, read_small, small_files
from cdc.replication.truncate import cut
from cdc.store.formats import layout
from cdc.store.formats.checkpoint import CheckpointWriter
from cdc.store.formats.index import STATS_FILE as COUNTS
from cdc.store.formats.missing import kept_names, read_damaged
from cdc.store.formats.state import StoreLock, TableNumbers
from cdc.store.reader.reader import StoreReader
from cdc.store.writer.log import RelayLog

log = get_logger(__name__)

_REPORT_EVERY_S = 1.0


class Follower:
    """Follows a master until told to stop. The store is locked meanwhile: whoever takes over has to end it first."""

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
        """Recover the store and lock it. Raises StorageError, DamagedError, LeaseHeldError."""
        self._store = store
        self._destination = destination
        self._master = master
        self._secret = secret
        self._timing = timing
        # What a crash left is mended as a writer would mend it: it may be all there is, should the master be gone.
        RelayLog(store, destination=destination, segment_bytes=segment_bytes, permissions=permissions).close()
        self._lock = StoreLock(store)
        self._checkpoints = CheckpointWriter(store, lambda: len(TableNumbers(store).names))
        names = kept_names(store)
        self._open_checkpoint(names[-1] if names else None)
        self._copy: Copy | None = None
        self._peer = PeerReport(str(master), connected=False, seq=0, behind_bytes=0)
        self._reported_at = 0.0
        self.last_seq = StoreReader(store).last_seq() or 0
        """Of the newest visible entry."""

    def run(self, stop: threading.Event) -> None:
        """Follow until ``stop`` is set; a connection that breaks is made anew, for ever. Raises what trying again
        cannot mend."""
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
                        log.warning("the master is not followed", error=str(error), again_in_s=pause_s)
                self._report(connected=False)
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
            channel.send(Kind.REFUSE, refusal(error))
        except PeerUnavailableError as second:
            log.info("the master was not told", error=str(second))

    def _follow(self, channel: Channel, stop: threading.Event) -> None:
        welcome, term = self._greet(channel)
        agreed = self._agree(channel, welcome, term)
        channel.send(Kind.FOLLOW, Follow(have=agreed.have).model_dump_json().encode())
        log.info("follows the master", master=channel.peer, term=welcome.term, last_seq=self.last_seq)
        copy = self._copy = Copy(self._store, self._checkpoints, channel.peer, self.last_seq)
        in_order = False
        try:
            self._receive(channel, copy, stop)
            in_order = True
        finally:
            self._end(copy, in_order=in_order)

    def _end(self, copy: Copy, *, in_order: bool) -> None:
        """The connection is over. What has come whole stays."""
        copy.close(in_order=in_order)
        self.last_seq = copy.last_seq

    def _greet(self, channel: Channel) -> tuple[Welcome, Term | None]:
        wait_s = self._timing.greeting_s
        nonce = require_nonce(expect(channel, Kind.CHALLENGE, wait_s), channel.peer)
        term = read_term(self._store)
        mine = new_nonce()
        channel.send(Kind.HELLO, sealed(self._hello(mine, term), b"hello", nonce, self._secret))
        channel.frames.max_payload = MAX_PAYLOAD
        data = expect(channel, Kind.WELCOME, wait_s)
        welcome = parse(Welcome, unsealed(data, b"welcome", mine, self._secret, channel.peer), channel.peer)
        require_known(welcome.formats, channel.peer)
        require_follows(term, Term(welcome.term, welcome.mastership, "master"))
        return welcome, term

    def _hello(self, nonce: bytes, term: Term | None) -> Hello:
        names = kept_names(self._store)
        view = View(self._store, names[-1]) if names else None
        crcs = {name: read_small(self._store, name) for name in small_files(self._store)}
        return Hello(
            destination=self._destination,
            nonce=nonce.hex(),
            towpath=__version__,
            term=0 if term is None else term.term,
            state="none" if term is None else term.state,
            mastership="" if term is None else term.mastership,
            segment=names[-1] if names else "",
            size_bytes=view.end() if view is not None else 0,
            last_seq=self.last_seq,
            tail_crc=int(view.entries["crc"][-1]) if view is not None and len(view.entries) else 0,
            files={name: zlib.crc32(content) for name, content in crcs.items() if content is not None},
        )

    def _agree(self, channel: Channel, welcome: Welcome, term: Term | None) -> Plan:
        """Cut what the master never had, and become its standby."""

        def ask(segment: str, start: int, stop: int, of: Sort) -> Compared:
            question = Compare(segment=segment, start=start, stop=stop, of=of)
            channel.send(Kind.COMPARE, question.model_dump_json().encode())
            return parse(Compared, expect(channel, Kind.COMPARED, self._timing.dead_s), channel.peer)

        same = term is not None and term.mastership == welcome.mastership
        # Where something was given up, here or there, the index of a segment that was equal may have changed since.
        given_up = welcome.given_up or bool(read_damaged(self._store))
        compared = term.compared if term is not None and same and not given_up else ""
        found = plan(self._store, welcome.segments, welcome.removed_seq, ask, compared)
        fetched = {name: self._fetch(channel, name, *numbers) for name, numbers in found.fetch.items()}
        changed = self._shrink(found, fetched, f"term {welcome.term} of {channel.peer}")
        if not same or term is None or term.state != "standby" or changed:
            # What capture and retention noted here is about a store that was another one.
            for name in ("capture.json", COUNTS):
                remove_file(self._store / name)
            become_standby(self._store, Term(welcome.term, welcome.mastership, "standby"))
        return found

    def _fetch(self, channel: Channel, segment: str, start: int, stop: int) -> bytes:
        """The master's index entries of a range."""
        channel.send(Kind.FETCH, Fetch(segment=segment, start=start, stop=stop).model_dump_json().encode())
        found = b""
        while len(found) < (stop - start) * ENTRY_SIZE:
            payload = expect(channel, Kind.ENTRIES, self._timing.dead_s)
            if payload[: ENTRIES.size] != ENTRIES.pack(start + len(found) // ENTRY_SIZE):
                raise CorruptStreamError("entries that were not asked for", place=channel.peer)
            found += payload[ENTRIES.size :]
        return found

    def _shrink(self, found: Plan, fetched: dict[str, bytes], why: str) -> bool:
        """Carry the plan out."""
        # Before anything goes: the checkpoint must not claim it.
        self._open_checkpoint(found.have[0].segment if found.have else None)
        lost = cut(self._store, found, fetched, why)
        self.last_seq = StoreReader(self._store).last_seq() or 0
        return bool(lost)

    def _open_checkpoint(self, segment: str | None) -> None:
        """The store says that a writer is at work, and what a take-over has to verify: from ``segment`` on (None: all
        of it)."""
        path = None if segment is None else layout.segments_folder(self._store) / segment
        self._checkpoints.opened(path, 0, empty=True, finished=False)

    # --- the stream

    def _receive(self, channel: Channel, copy: Copy, stop: threading.Event) -> None:
        self._send_report(channel, copy)
        channel.received_at = time.monotonic()
        sent_at = time.monotonic()
        while not stop.is_set():
            frame = channel.receive(min(0.2, self._timing.heartbeat_s))
            came = frame is not None
            while frame is not None:
                self._take(frame, channel.peer, copy)
                frame = channel.receive(0) if copy.unsynced_bytes < SYNC_BYTES else None
            now = time.monotonic()
            if came:
                copy.commit()
                self.last_seq = copy.last_seq
            if came or now - sent_at >= self._timing.heartbeat_s:
                self._send_report(channel, copy)
                sent_at = now
            if now - self._reported_at >= _REPORT_EVERY_S:
                self._report(connected=True)
            if now - channel.received_at > self._timing.dead_s:
                raise PeerUnavailableError(f"silent for {self._timing.dead_s:g} s", place=channel.peer)

    def _take(self, frame: Frame, peer: str, copy: Copy) -> None:
        payload = frame.payload
        if frame.kind is Kind.DATA and len(payload) > DATA.size:
            copy.data(DATA.unpack_from(payload)[0], memoryview(payload)[DATA.size :])
        elif frame.kind is Kind.ENTRIES and len(payload) > ENTRIES.size:
            copy.entries(ENTRIES.unpack_from(payload)[0], payload[ENTRIES.size :])
        elif frame.kind is Kind.SEGMENT:
            copy.segment(_name(payload, peer))
        elif frame.kind in (Kind.FILE, Kind.FILE_PART) and len(payload) > FILE.size:
            (length,) = FILE.unpack_from(payload)
            name = _name(payload[FILE.size : FILE.size + length], peer)
            copy.file(name, payload[FILE.size + length :], whole=frame.kind is Kind.FILE)
        elif frame.kind is Kind.FORGET:
            copy.forget(_name(payload, peer))
        elif frame.kind is Kind.HEARTBEAT and len(payload) == HEARTBEAT.size:
            seq, behind_bytes = HEARTBEAT.unpack(payload)
            self._peer = PeerReport(str(self._master), connected=True, seq=seq, behind_bytes=behind_bytes)
        else:
            require(frame, peer)
            raise CorruptStreamError(f"a {frame.kind.name} of {len(payload)} bytes in the stream", place=peer)

    def _send_report(self, channel: Channel, copy: Copy) -> None:
        name, offset = copy.place
        channel.send(Kind.REPORT, REPORT.pack(copy.last_seq, offset), name.encode())

    def _report(self, *, connected: bool) -> None:
        """For ``cdc status``."""
        self._reported_at = time.monotonic()
        term = read_term(self._store)
        peer = PeerReport(str(self._master), connected, self._peer.seq, self._peer.behind_bytes)
        number = 0 if term is None else term.term
        try:
            write_report(self._store, RoleReport("standby", number, os.getpid(), time.time_ns() // 1000, (peer,)))
        except CdcError as error:
            log.warning("the standby's state could not be written", error=str(error))


def _name(data: bytes, peer: str) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise CorruptStreamError("a name that is none", place=peer) from None
