"""A master's connection to one standby: greeting, comparison, then the stream. RocketMQ's ``HAConnection``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cdc import __version__
from cdc.binlog.entry import VERSION as INDEX_VERSION
from cdc.errors import CdcError, CorruptStreamError, IdentityError, PeerUnavailableError
from cdc.log import get_logger
from cdc.replication.epoch import Term, require_follows
from cdc.replication.frames import MAX_PAYLOAD, Channel, Kind
from cdc.replication.messages import (
    ENTRIES,
    HEARTBEAT,
    REPORT,
    Compare,
    Compared,
    Fetch,
    Follow,
    Formats,
    Hello,
    Welcome,
    expect,
    new_nonce,
    parse,
    refusal,
    require,
    require_nonce,
    sealed,
    unsealed,
)
from cdc.replication.settings import Timing
from cdc.replication.snapshot import View, require_there, segment_names, small_files
from cdc.replication.stream import ENTRIES_AT_ONCE, Stream
from cdc.store.formats import layout
from cdc.store.formats.missing import kept_names, read_damaged, read_removed

log = get_logger(__name__)

_COMPARING_S = 60.0
"""A standby may think so long between two questions: it cuts in that time."""
_LOOK_EVERY_S = 0.1


@dataclass
class Progress:
    """How far a standby is. Written by the link's threads, read by all."""

    peer: str
    following: bool = False
    seq: int = 0
    """Everything up to here is on its disk and visible there."""
    behind_bytes: int = 0


class Link:
    """Serves one connection, on a thread of its own and one that listens to the reports."""

    def __init__(
        self,
        store: Path,
        channel: Channel,
        *,
        destination: str,
        term: Term,
        secret: bytes | None,
        timing: Timing,
        on_change: Callable[[Link], None],
    ) -> None:
        """``on_change`` is called whenever :attr:`progress` has changed."""
        self._store = store
        self._channel = channel
        self._destination = destination
        self._term = term
        self._secret = secret
        self._timing = timing
        self._on_change = on_change
        self.progress = Progress(channel.peer)
        self._wake = threading.Event()
        self._stopped = self._closing = False
        self._place: tuple[str, int] = ("", 0)
        self._looked_at = 0.0
        self._thread = threading.Thread(target=self._run, name=f"standby {channel.peer}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something has become visible."""
        self._wake.set()

    def stop(self) -> None:
        self._stopped = self._closing = True
        self._wake.set()
        self._channel.close()
        self._thread.join()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    # --- the thread

    def _run(self) -> None:
        try:
            hello = self._greet()
            self._stream(hello)
        except CdcError as error:
            if not self._closing:
                self._say(error)
        finally:
            self.progress.following = False
            self._stopped = True
            self._channel.close()
            self._on_change(self)

    def _say(self, error: CdcError) -> None:
        gone = isinstance(error, PeerUnavailableError)
        log.warning("standby lost" if gone else "standby refused", standby=self.progress.peer, error=str(error))
        if not gone:
            try:
                self._channel.send(Kind.REFUSE, refusal(error))
            except PeerUnavailableError as second:
                log.info("the standby was not told", standby=self.progress.peer, error=str(second))

    def _greet(self) -> Hello:
        channel, wait_s = self._channel, self._timing.greeting_s
        nonce = new_nonce()
        channel.send(Kind.CHALLENGE, nonce)
        data = expect(channel, Kind.HELLO, wait_s)
        hello = parse(Hello, unsealed(data, b"hello", nonce, self._secret, channel.peer), channel.peer)
        if hello.destination != self._destination:
            raise IdentityError(
                f"the standby's store is of the destination {hello.destination!r}, the master's of"
                f" {self._destination!r}",
                remedy="Compare standby.listen and standby.master of the two configurations.",
            )
        theirs = None if hello.state == "none" else Term(hello.term, hello.mastership, hello.state)
        require_follows(theirs, self._term)
        try:
            their_nonce = require_nonce(bytes.fromhex(hello.nonce), channel.peer)
        except ValueError:
            raise CorruptStreamError("a nonce that is none", place=channel.peer) from None
        channel.frames.max_payload = MAX_PAYLOAD
        require_there(self._store, small_files(self._store))
        self._names = segment_names(self._store)
        welcome = Welcome(
            term=self._term.term,
            mastership=self._term.mastership,
            towpath=__version__,
            formats=Formats(store=layout.VERSION, index=INDEX_VERSION),
            heartbeat_s=self._timing.heartbeat_s,
            segments=self._names,
            removed_seq=read_removed(self._store).seq,
            given_up=bool(read_damaged(self._store)),
        )
        channel.send(Kind.WELCOME, sealed(welcome, b"welcome", their_nonce, self._secret))
        log.info(
            "a standby has connected",
            standby=channel.peer,
            segment=hello.segment,
            size_bytes=hello.size_bytes,
            last_seq=hello.last_seq,
        )
        return hello

    def _follow(self) -> Follow:
        """Answer the standby's questions until it knows from where to follow."""
        channel = self._channel
        view: View | None = None
        while True:
            frame = channel.receive(_COMPARING_S)
            if frame is None:
                raise PeerUnavailableError(f"no answer within {_COMPARING_S:g} s", place=channel.peer)
            require(frame, channel.peer)
            if frame.kind is Kind.FOLLOW:
                return parse(Follow, frame.payload, channel.peer)
            if frame.kind not in (Kind.COMPARE, Kind.FETCH):
                raise CorruptStreamError(f"a {frame.kind.name} in the comparison", place=channel.peer)
            asked: Compare | Fetch
            if frame.kind is Kind.COMPARE:
                asked = parse(Compare, frame.payload, channel.peer)
            else:
                asked = parse(Fetch, frame.payload, channel.peer)
            if layout.segment_start(Path(asked.segment)) is None:
                raise CorruptStreamError(f"{asked.segment!r} is not the name of a segment", place=channel.peer)
            if view is None or view.path.name != asked.segment:
                view = View(self._store, asked.segment)
            if isinstance(asked, Fetch):
                for start in range(asked.start, min(asked.stop, len(view.entries)), ENTRIES_AT_ONCE):
                    some = view.entries[start : min(asked.stop, start + ENTRIES_AT_ONCE)]
                    channel.send(Kind.ENTRIES, ENTRIES.pack(start), some.tobytes())
                self._require_kept(asked.segment)
                continue
            answer = Compared(
                count=view.count(asked.of),
                head_crc=view.head_crc(),
                digest=view.digest(asked.of, asked.start, asked.stop),
                entries=view.entries_until(asked.of, asked.stop),
            )
            self._require_kept(asked.segment)
            channel.send(Kind.COMPARED, answer.model_dump_json().encode())

    def _require_kept(self, segment: str) -> None:
        """To be asked after looking: where retention has begun to remove a segment meanwhile, what was seen of it is
        worth nothing, and the standby must not take it for a difference. It asks again, with the names of then."""
        if segment not in kept_names(self._store):
            raise PeerUnavailableError(
                f"retention has removed {segment} while the standby compared it", place=self._channel.peer
            )

    def _stream(self, hello: Hello) -> None:
        follow = self._follow()
        known = sorted({*self._names, *(one.segment for one in follow.have)})
        stream = self._sent = Stream(self._store, self._send, follow.have, known, hello.files)
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
                    self._seen_seq = 1 << 63
                    continue
                self._seen_seq = stream.last_seq or 1 << 63
                if now - self._sent_at >= self._timing.heartbeat_s:
                    self._send(Kind.HEARTBEAT, HEARTBEAT.pack(stream.last_seq, self.progress.behind_bytes))
                if now - self._channel.received_at > self._timing.dead_s:
                    raise PeerUnavailableError(f"silent for {self._timing.dead_s:g} s", place=self._channel.peer)
                self._look()
                self._wake.wait(self._timing.poll_s)
        finally:
            stream.close()
            self._stopped = True
            self.progress.following = False
            self._on_change(self)
            listener.join()  # it ends by itself; nobody else sends when the standby is told why
        if self._broken is not None:
            raise self._broken

    _broken: CdcError | None = None
    _sent: Stream | None = None
    _seen_seq = 1 << 63
    """Of the newest visible entry here; too large while it is not known."""

    def _send(self, kind: Kind, *parts: bytes) -> None:
        self._channel.send(kind, *parts)
        self._sent_at = time.monotonic()

    # --- what the standby reports

    def _listen(self) -> None:
        try:
            while not self._stopped:
                frame = self._channel.receive(self._timing.heartbeat_s)
                if frame is None:
                    continue
                require(frame, self._channel.peer)
                if frame.kind is not Kind.REPORT or len(frame.payload) < REPORT.size:
                    raise CorruptStreamError(f"a {frame.kind.name} where a report was due", place=self._channel.peer)
                seq, offset = REPORT.unpack_from(frame.payload)
                assert self._sent is not None
                if seq > self._sent.last_seq:  # a put would be told that it is where it is not
                    raise CorruptStreamError(
                        f"a report of seq {seq}, and only {self._sent.last_seq} was sent", place=self._channel.peer
                    )
                self._place = (frame.payload[REPORT.size :].decode("ascii", "replace"), offset)
                self._look(force=not self.progress.following)
                if seq >= self._seen_seq:
                    self.progress.behind_bytes = 0
                self.progress.seq = seq
                self.progress.following = True
                self._on_change(self)
        except CdcError as error:
            if not self._stopped:
                self._broken = error
                self._stopped = True
        self.progress.following = False
        self._wake.set()
        self._on_change(self)

    def _look(self, *, force: bool = False) -> None:
        """How far behind is the standby, in bytes of the segments?"""
        now = time.monotonic()
        if not force and now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        name, offset = self._place
        total = 0
        for each in kept_names(self._store):
            if each >= name:
                try:
                    total += (layout.segments_folder(self._store) / each).stat().st_size
                except FileNotFoundError:
                    continue
                total -= offset if each == name else 0
        self.progress.behind_bytes = max(0, total)
