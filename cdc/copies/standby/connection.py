"""A master's connection to one standby: greeting, comparison, then the stream. After RocketMQ's ``HAConnection``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cdc.base.errors import CdcError, CorruptStreamError, IdentityError, PeerUnavailableError
from cdc.base.log import get_logger
from cdc.base.version import package_version
from cdc.binlog.entry import VERSION as INDEX_VERSION
from cdc.copies.standby.protocol import (
    ENTRIES,
    HEARTBEAT,
    MAX_PAYLOAD,
    REPORT,
    Channel,
    Compare,
    Compared,
    Fetch,
    Follow,
    Formats,
    FrameKind,
    Hello,
    StandbyFrame,
    Welcome,
    expect,
    new_nonce,
    parse_message,
    raise_refusal,
    refusal,
    require_nonce,
    sign_message,
    verify_message,
)
from cdc.copies.standby.role import LeadershipEpoch, require_follows
from cdc.copies.standby.settings import MasterSettings
from cdc.copies.standby.snapshot import SegmentSnapshot, require_store_present, segment_names, small_files
from cdc.copies.standby.stream import ENTRIES_AT_ONCE, Stream
from cdc.store.formats import layout
from cdc.store.formats.missing import kept_names, read_damaged, read_removed

log = get_logger(__name__)

_COMPARING_S = 60.0
"""The longest time between two questions of a standby; it truncates its store in that time."""
_MEASURE_EVERY_S = 0.1
_UNKNOWN_SEQ = 1 << 63


@dataclass
class StandbyProgress:
    """The progress of a standby. The connection's threads write it, any thread may read it."""

    peer: str
    following: bool = False
    seq: int = 0
    """Everything up to this seq is on the standby's disk and visible there."""
    behind_bytes: int = 0


class StandbyConnection:
    """Serves one standby, with one thread that sends and one that listens to its reports."""

    def __init__(
        self,
        store: Path,
        channel: Channel,
        *,
        destination: str,
        epoch: LeadershipEpoch,
        settings: MasterSettings,
        seen: set[str],
        on_change: Callable[[StandbyConnection], None],
    ) -> None:
        """``on_change`` is called whenever :attr:`progress` has changed; ``seen`` is that of :class:`Stream`."""
        self._store = store
        self._channel = channel
        self._destination = destination
        self._epoch = epoch
        self._secret = settings.secret
        self._timing = settings.timing
        self._seen = seen
        self._on_change = on_change
        self.progress = StandbyProgress(channel.peer)
        self._wake = threading.Event()
        self._stopped = self._closing = False
        self._reported: tuple[str, int] = ("", 0)
        """The standby's current segment, and how many of its bytes are on its disk."""
        self._measured_at = 0.0
        self._broken: CdcError | None = None
        self._sent: Stream | None = None
        self._newest_seq = _UNKNOWN_SEQ
        """Seq of the newest visible entry of the master; too large while it is not known."""
        self._thread = threading.Thread(target=self._run, name=f"standby {channel.peer}", daemon=True)

    def start(self) -> None:
        """Starts the sending thread."""
        self._thread.start()

    def wake(self) -> None:
        """Tells the sending thread that something has become visible."""
        self._wake.set()

    def stop(self) -> None:
        """Closes the connection and waits for the threads."""
        self._stopped = self._closing = True
        self._wake.set()
        self._channel.close()
        self._thread.join()

    @property
    def ended(self) -> bool:
        """Whether the sending thread has ended."""
        return not self._thread.is_alive()

    # --- the sending thread

    def _run(self) -> None:
        try:
            hello = self._greet()
            self._stream(hello)
        except CdcError as error:
            if not self._closing:
                self._report_end(error)
        finally:
            self.progress.following = False
            self._stopped = True
            self._channel.close()
            self._on_change(self)

    def _report_end(self, error: CdcError) -> None:
        """Logs why the connection ends, and tells the standby unless it is gone."""
        is_gone = isinstance(error, PeerUnavailableError)
        log.warning("standby lost" if is_gone else "standby refused", standby=self.progress.peer, error=str(error))
        if not is_gone:
            try:
                self._channel.send(FrameKind.REFUSE, refusal(error))
            except PeerUnavailableError as second:
                log.info("the refusal did not reach the standby", standby=self.progress.peer, error=str(second))

    def _greet(self) -> Hello:
        channel, wait_s = self._channel, self._timing.greeting_s
        nonce = new_nonce()
        channel.send(FrameKind.CHALLENGE, nonce)
        data = expect(channel, FrameKind.HELLO, wait_s)
        hello = parse_message(Hello, verify_message(data, b"hello", nonce, self._secret, channel.peer), channel.peer)
        if hello.destination != self._destination:
            raise IdentityError(
                f"the standby's store is of the destination {hello.destination!r}, the master's of"
                f" {self._destination!r}",
                remedy="Compare standby.listen and standby.master of the two configurations.",
            )
        standby_epoch = None if hello.state == "none" else LeadershipEpoch(hello.term, hello.mastership, hello.state)
        require_follows(standby_epoch, self._epoch)
        try:
            their_nonce = require_nonce(bytes.fromhex(hello.nonce), channel.peer)
        except ValueError:
            raise CorruptStreamError("received a nonce that is not hexadecimal", place=channel.peer) from None
        channel.frames.max_payload = MAX_PAYLOAD
        require_store_present(self._store, small_files(self._store))
        self._names = segment_names(self._store)
        welcome = Welcome(
            term=self._epoch.number,
            mastership=self._epoch.id,
            towpath=package_version(),
            formats=Formats(store=layout.VERSION, index=INDEX_VERSION),
            heartbeat_s=self._timing.heartbeat_s,
            segments=self._names,
            removed_seq=read_removed(self._store).seq,
            given_up=bool(read_damaged(self._store)),
        )
        channel.send(FrameKind.WELCOME, sign_message(welcome, b"welcome", their_nonce, self._secret))
        log.info(
            "standby connected",
            standby=channel.peer,
            segment=hello.segment,
            size_bytes=hello.size_bytes,
            last_seq=hello.last_seq,
        )
        return hello

    def _answer_comparisons(self) -> Follow:
        """Answers the standby's questions until it says from where to send."""
        channel = self._channel
        snapshot: SegmentSnapshot | None = None
        while True:
            frame = channel.receive(_COMPARING_S)
            if frame is None:
                raise PeerUnavailableError(f"no answer within {_COMPARING_S:g} s", place=channel.peer)
            raise_refusal(frame, channel.peer)
            if frame.kind is FrameKind.FOLLOW:
                return parse_message(Follow, frame.payload, channel.peer)
            asked = self._question(frame)
            if snapshot is None or snapshot.path.name != asked.segment:
                snapshot = SegmentSnapshot(self._store, asked.segment)
            if isinstance(asked, Fetch):
                for start in range(asked.start, min(asked.stop, len(snapshot.entries)), ENTRIES_AT_ONCE):
                    entries = snapshot.entries[start : min(asked.stop, start + ENTRIES_AT_ONCE)]
                    channel.send(FrameKind.ENTRIES, ENTRIES.pack(start), entries.tobytes())
                self._require_kept(asked.segment)
                continue
            answer = Compared(
                count=snapshot.count(asked.of),
                head_crc=snapshot.head_crc(),
                digest=snapshot.digest(asked.of, asked.start, asked.stop),
                entries=snapshot.entries_until(asked.of, asked.stop),
            )
            self._require_kept(asked.segment)
            channel.send(FrameKind.COMPARED, answer.model_dump_json().encode())

    def _question(self, frame: StandbyFrame) -> Compare | Fetch:
        peer = self._channel.peer
        if frame.kind not in (FrameKind.COMPARE, FrameKind.FETCH):
            raise CorruptStreamError(f"received a {frame.kind.name} frame during the comparison", place=peer)
        asked: Compare | Fetch
        if frame.kind is FrameKind.COMPARE:
            asked = parse_message(Compare, frame.payload, peer)
        else:
            asked = parse_message(Fetch, frame.payload, peer)
        if layout.segment_start(Path(asked.segment)) is None:
            raise CorruptStreamError(f"{asked.segment!r} is not the name of a segment", place=peer)
        return asked

    def _require_kept(self, segment: str) -> None:
        """Raises PeerUnavailableError if retention has removed the segment. Call it after reading the segment.

        An answer from a segment that was being removed is worthless, and the standby must not take it for a
        difference. It connects again, and compares the segments that are left.
        """
        if segment not in kept_names(self._store):
            raise PeerUnavailableError(
                f"retention removed {segment} while the standby compared it", place=self._channel.peer
            )

    def _stream(self, hello: Hello) -> None:
        follow = self._answer_comparisons()
        segment_names = sorted({*self._names, *(segment.segment for segment in follow.have)})
        stream = self._sent = Stream(self._store, self._send, follow.have, segment_names, hello.files, seen=self._seen)
        self._sent_at = time.monotonic()
        self._channel.received_at = time.monotonic()
        listener = threading.Thread(target=self._listen, name=f"reports of {self.progress.peer}", daemon=True)
        listener.start()
        try:
            tidied_at = 0.0
            while not self._stopped:
                self._wake.clear()
                now = time.monotonic()
                if now - tidied_at >= self._timing.heartbeat_s:
                    tidied_at = now
                    stream.tidy()
                if stream.advance():
                    self._newest_seq = _UNKNOWN_SEQ
                    continue
                self._newest_seq = stream.last_seq or _UNKNOWN_SEQ
                if now - self._sent_at >= self._timing.heartbeat_s:
                    self._send(FrameKind.HEARTBEAT, HEARTBEAT.pack(stream.last_seq, self.progress.behind_bytes))
                if now - self._channel.received_at > self._timing.dead_s:
                    raise PeerUnavailableError(f"silent for {self._timing.dead_s:g} s", place=self._channel.peer)
                self._measure()
                self._wake.wait(self._timing.poll_s)
        finally:
            stream.close()
            self._stopped = True
            self.progress.following = False
            self._on_change(self)
            listener.join()  # it ends by itself, and afterwards only this thread sends: a REFUSE is not interrupted
        if self._broken is not None:
            raise self._broken

    def _send(self, kind: FrameKind, *parts: bytes) -> None:
        self._channel.send(kind, *parts)
        self._sent_at = time.monotonic()

    # --- the listening thread

    def _listen(self) -> None:
        try:
            while not self._stopped:
                frame = self._channel.receive(self._timing.heartbeat_s)
                if frame is not None:
                    self._take_report(frame)
        except CdcError as error:
            if not self._stopped:
                self._broken = error
                self._stopped = True
        self.progress.following = False
        self._wake.set()
        self._on_change(self)

    def _take_report(self, frame: StandbyFrame) -> None:
        peer = self._channel.peer
        raise_refusal(frame, peer)
        if frame.kind is not FrameKind.REPORT or len(frame.payload) < REPORT.size:
            raise CorruptStreamError(f"received a {frame.kind.name} frame instead of a report", place=peer)
        seq, offset = REPORT.unpack_from(frame.payload)
        assert self._sent is not None
        if seq > self._sent.last_seq:  # accepting it would confirm a put that the standby does not have
            raise CorruptStreamError(
                f"received a report of seq {seq}, but only {self._sent.last_seq} was sent", place=peer
            )
        self._reported = (frame.payload[REPORT.size :].decode("ascii", "replace"), offset)
        self._measure(force=not self.progress.following)
        if seq >= self._newest_seq:
            self.progress.behind_bytes = 0
        self.progress.seq = seq
        self.progress.following = True
        self._on_change(self)

    def _measure(self, *, force: bool = False) -> None:
        """Measures how far the standby is behind, in bytes of the segments."""
        now = time.monotonic()
        if not force and now - self._measured_at < _MEASURE_EVERY_S:
            return
        self._measured_at = now
        name, offset = self._reported
        total = 0
        for segment_name in kept_names(self._store):
            if segment_name >= name:
                try:
                    total += (layout.segments_folder(self._store) / segment_name).stat().st_size
                except FileNotFoundError:
                    continue
                total -= offset if segment_name == name else 0
        self.progress.behind_bytes = max(0, total)
