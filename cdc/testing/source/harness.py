"""Runs capture's session over faulty dumps in this process, without a socket, so that a case takes milliseconds.

:class:`SessionHarness` reads several dumps into one store, as capture's loop does, and can copy the store as a killed
process leaves it. The session's statements (for table definitions) are answered by a
:class:`~cdc.testing.source.server.FakeSource`, which many harnesses can share.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from cdc.base.errors import CdcError, SourceUnavailableError
from cdc.binlog.positions import BinlogPosition, make_file_name, split_seq
from cdc.capture.session import CaptureCounters, CaptureSession
from cdc.capture.start import Start
from cdc.config import DestinationConfig
from cdc.meta import SourceIdentity
from cdc.source.dump import MAX_POSITION
from cdc.store.writer.log import RelayLog
from cdc.testing.binlog import numbered_packets
from cdc.testing.source.faults import Action, Fault, Hangup
from cdc.testing.source.history import UUID, History
from cdc.testing.source.server import FakeSource, Rows


class PacketStream:
    """The bytes of a dump, at most ``piece`` bytes per read. Raises SourceUnavailableError at the end."""

    def __init__(self, actions: Iterator[Action], piece: int, before_end: Callable[[], None] | None = None) -> None:
        self._data = b"".join(action for action in actions if isinstance(action, bytes))
        self._piece = piece
        self._at = 0
        self._before_end = before_end

    def recv_into(self, buffer: memoryview) -> int:
        assert len(buffer), "no room to read into"
        n = min(self._piece, len(buffer), len(self._data) - self._at)
        if n == 0:
            if self._before_end is not None:
                self._before_end()
            raise SourceUnavailableError("the server closed the connection", place="source in this process")
        buffer[:n] = self._data[self._at : self._at + n]
        self._at += n
        return n

    def close(self) -> None:
        """Does nothing."""


class _Cursor:
    """The part of a cursor that :func:`cdc.source.connection.query` needs."""

    def __init__(self, source: FakeSource) -> None:
        self._source = source
        self._rows: Rows = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing."""

    def execute(self, sql: str, args: Sequence[object] | None = None) -> None:
        text = sql if args is None else sql % tuple(f"'{arg}'" for arg in args)
        self._rows = self._source.ask(text) or []

    def fetchall(self) -> Rows:
        return self._rows


class LocalControl:
    """A connection to a fake source without a socket, for statements only."""

    def __init__(self, source: FakeSource) -> None:
        self._source = source
        self.host, self.port, self.user = "127.0.0.1", source.port, "cdc"

    def cursor(self, _: object = None) -> _Cursor:
        return _Cursor(self._source)

    def get_server_info(self) -> str:
        return self._source.version


class SessionHarness:
    """One store, and the sessions that read a history into it."""

    def __init__(self, config: DestinationConfig, source: FakeSource) -> None:
        self._config = config
        self._control: Any = LocalControl(source)
        self.log = self._open()

    def _open(self) -> RelayLog:
        config = self._config
        return RelayLog(config.store.path, destination=config.name, segment_bytes=config.store.segment_bytes)

    def connect(
        self,
        history: History,
        fault: Fault | None = None,
        *,
        piece: int = 1 << 20,
        before_end: Callable[[], None] | None = None,
    ) -> CdcError | None:
        """Reads a dump from the end of the store until it ends. Returns the error that ended it, or None if everything
        was read. ``fault`` alters the dump; ``before_end`` is called when the stream has no more bytes."""
        at = self.resume(history)
        dump_pos = at.pos if at.pos <= MAX_POSITION else 4
        packets = numbered_packets(history.dump(at.file, dump_pos))
        actions = iter((b"".join(packets), Hangup())) if fault is None else fault.apply(packets)
        identity = SourceIdentity(server_uuid=UUID, flavor="mysql", base_name=history.base, epoch=0)
        start = Start(at, identity, self.log.last_seq is None)
        session = CaptureSession(
            self._config,
            self._control,
            self.log,
            start,
            CaptureCounters(),
            stream=PacketStream(actions, piece, before_end),
        )
        with closing(session):
            try:
                while not session.has_passed(history.end):
                    session.step()
            except CdcError as error:
                ended: CdcError | None = error
            else:
                ended = None
        self.log.flush()
        return ended

    def resume(self, history: History) -> BinlogPosition:
        """Returns the position at which the next dump begins."""
        if self.log.last_seq is None:
            return BinlogPosition(history.files[0].name, 4)
        parts = split_seq(self.log.last_seq)
        return BinlogPosition(make_file_name(history.base, parts.file_number), parts.offset)

    def close(self) -> None:
        """Closes the store."""
        self.log.close()

    def reopen(self) -> None:
        """Closes the store and opens it again."""
        self.close()
        self.log = self._open()

    def copy_as_killed(self, folder: Path) -> None:
        """Copies the store as it is now, as a process finds it after this one was killed."""
        self.log.flush()  # so that nothing changes during the copy
        shutil.copytree(self._config.store.path, folder, dirs_exist_ok=True)
