"""Reads the binlog files of a folder as a server sends them: packets, with an artificial rotate and the format
description at the start of each file.

So capture's session, its proofs and its search for a position read a folder like a server. Only headers are looked at
here; the framer verifies checksums. An event is sent when the file has all of it.

A file is finished when it ends with a ROTATE or STOP event. Of a file that ends otherwise, and has a successor, it has
to be proved that nothing is missing (:meth:`FolderDump._require_whole`): the server may have crashed, or the copy may
be cut off.
"""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np

from cdc.base.closing import Closing
from cdc.base.errors import (
    CdcError,
    CorruptStreamError,
    DamagedError,
    IdentityError,
    SourceRefusedError,
    SourceUnavailableError,
)
from cdc.base.log import get_logger
from cdc.binlog import events
from cdc.binlog import packet_kernel as k
from cdc.binlog.constants import FLAG_ARTIFICIAL, HEADER_SIZE, LARGEST_EVENT, MAGIC, EventType
from cdc.binlog.gtids import GtidSet, show_state
from cdc.binlog.positions import BinlogPosition, make_file_name
from cdc.config import SourceConfig
from cdc.source.folder import (
    WHOLE_COPY,
    BinlogFolder,
    CutFileError,
    FileHead,
    FileReader,
    FolderFile,
    encrypted,
    read_head,
    relay_log,
)
from cdc.source.resume import gtids_before_file, gtids_in
from cdc.source.scan import read_file_start

log = get_logger(__name__)

SETTLE_S = 30.0
"""The time for which an unfinished file, or a gap before the next one, may stay as it is while later files exist. A
tool that copies several files at once needs this time."""
_POLL_S = 0.25
_CLOCK_STEP_S = 3600
"""The time by which the clock of a server may be set back between two files."""
_SRC_BYTES = 1 << 20
_LARGEST_RARE = 1 << 16
_SCRATCH_BYTES = 1 << 17
_COMPARED_BYTES = 1 << 16
_FATAL = 1236
_EOF = b"\x05\0\0\0\xfe\0\0\2\0"


class FolderDump(Closing):
    """The packets of a folder's files, from a position on. A context manager.

    With ``follow`` it has no end: :meth:`recv_into` returns 0 while there is nothing new. Without, it ends with an EOF
    packet, and a position that cannot be read is answered by an error packet, as servers do it.
    """

    def __init__(self, source: SourceConfig, position: BinlogPosition, *, follow: bool) -> None:
        """Opens the file. Raises SourceUnavailableError, SourceRefusedError, DamagedError."""
        self._folder = BinlogFolder(source)
        self._place = self._folder.place
        self._follow = follow
        self._pending = b""
        self._ended = False
        self._src = np.empty(_SRC_BYTES, dtype=np.uint8)
        self._st = k.PacketState.new()
        self._reader: FileReader | None = None
        self._head: FileHead | None = None
        self._number = position.file_number
        self._finished_at = -1
        """The end of the event that ends the current file; -1 while it has not come."""
        self._shrunk = False
        """Whether the file was shorter than what was read of it, as while a copy of it is written again."""
        self._stalled: tuple[object, float] | None = None
        """The state of the folder while the reading waits, and the beginning of the wait by ``time.monotonic``."""
        file = self._folder.file(position.file)
        if file is None:
            self._refuse(
                SourceRefusedError(
                    f"the folder does not hold {position.file}, which capture needs from position {position.pos} on",
                    place=self._place,
                    remedy="Copy the file into the folder.",
                ),
                "Could not find first log file name in binary log index file",
            )
            return
        self._open(file, position.pos)

    # --- the dump

    def recv_into(self, buffer: memoryview) -> int:
        """Puts the next bytes into the buffer and returns their number. Raises SourceUnavailableError, DamagedError,
        SourceRefusedError."""
        while True:
            if self._pending:
                n = min(len(self._pending), len(buffer))
                buffer[:n] = self._pending[:n]
                self._pending = self._pending[n:]
                return n
            if self._ended:
                raise SourceUnavailableError("the dump of the folder has ended", place=self._place)
            if len(buffer) < _SCRATCH_BYTES:
                scratch = bytearray(_SCRATCH_BYTES)
                n = self._pack(memoryview(scratch))
                self._pending = bytes(scratch[:n])
            else:
                n = self._pack(buffer)
                if n:
                    return n
            if not self._pending and not self._advance():
                if self._follow:
                    time.sleep(_POLL_S)
                    return 0
                self._pending, self._ended = _EOF, True

    def explain(self, error: CdcError, position: BinlogPosition) -> CdcError:
        """Returns the error for events that the framer cannot read: damage, unless the file may be written now."""
        if not isinstance(error, CorruptStreamError) or position.file_number >= max(self._folder.by_number()):
            return error
        return DamagedError(
            f"the file is damaged: {error.message}",
            place=f"{self._place}: {position.file}, behind position {position.pos}",
            remedy=WHOLE_COPY,
        )

    def has_sent(self, position: BinlogPosition) -> bool:
        """Whether everything before a position was sent."""
        if self._pending or int(self._st.event_left):
            return False
        return (self._number, int(self._st.file_pos)) >= (position.file_number, position.pos)

    def close(self) -> None:
        """Closes the file."""
        if self._reader is not None:
            self._reader.close()

    def _pack(self, buffer: memoryview) -> int:
        """Packs what is there into the buffer and returns the number of bytes."""
        st = self._st
        st.out_pos = 0
        out = np.frombuffer(buffer, dtype=np.uint8)
        while True:
            self._status = k.pack(st, self._src, out)
            if st.out_pos:
                return int(st.out_pos)
            if self._status == k.RARE:
                if not self._pass_rare():
                    return 0
            elif self._status != k.NEED_INPUT or not self._fill():
                return 0

    def _fill(self) -> bool:
        """Reads more of the file. Returns whether there was more."""
        assert self._reader is not None
        st = self._st
        rest = int(st.in_end - st.in_pos)
        self._src[:rest] = self._src[int(st.in_pos) : int(st.in_end)].copy()
        st.in_pos, st.in_end = 0, rest
        try:
            n = self._reader.read_into(self._src.data[rest:])
        except CutFileError as error:
            self._wait_for_copy(error)
            return False
        st.in_end += n
        st.limit = self._reader.limit()
        return n > 0

    # --- rare events

    def _pass_rare(self) -> bool:
        """Looks at the event that the kernel does not send by itself. Returns False if all of it is not there yet."""
        st = self._st
        at = int(st.in_pos)
        length = int.from_bytes(self._src[at + 9 : at + 13].tobytes(), "little")
        if length > _LARGEST_RARE:
            self._status = k.NO_EVENT
            return False
        while int(st.in_end) - int(st.in_pos) < length:
            if not self._fill():
                return False
        at = int(st.in_pos)
        event = self._src[at : at + length].tobytes()
        header = events.parse_header(event)
        if header.type == EventType.MARIADB_START_ENCRYPTION:
            raise encrypted(self._at_file())
        if header.type == EventType.FORMAT_DESCRIPTION and int(st.file_pos) != len(MAGIC):
            raise relay_log(self._at_file())
        if header.type == EventType.ROTATE:
            if header.flags & FLAG_ARTIFICIAL:
                raise relay_log(self._at_file())
            self._check_rotate(event)
        if header.type in (EventType.ROTATE, EventType.STOP):
            self._finished_at = int(st.file_pos) + length
        st.passes = 1
        return True

    def _check_rotate(self, event: bytes) -> None:
        assert self._head is not None
        try:
            next_name = events.parse_rotate(event, self._head.description.has_checksum).file
        except (DamagedError, UnicodeDecodeError):
            return  # the framer finds that its checksum is wrong
        expected = make_file_name(self._folder.base, self._number + 1)
        if next_name != expected and event == events.with_checksum(event):
            raise SourceRefusedError(
                f"the file says that {next_name} follows, and not {expected}",
                place=self._at_file(),
                remedy="The server's binlog was renamed. Capture the files of the new name as a new destination.",
            )

    # --- from file to file

    def _open(self, file: FolderFile, pos: int) -> None:
        """Opens a file and sends what a server sends before its events."""
        reader = FileReader(file, self._place)
        try:
            head = read_head(reader)
            if self._starts_badly(reader, pos):
                reader.close()
                return
            reader.seek(pos)
        except BaseException:
            reader.close()
            raise
        if self._reader is not None:
            self._reader.close()
        self._reader, self._head, self._number = reader, head, file.number
        self._finished_at = -1
        st = self._st
        st.in_pos = st.in_end = 0
        st.file_pos, st.limit = pos, reader.limit()
        self._pending = self._packet(events.make_rotate(file.name, pos, head.server_id))
        if pos > len(MAGIC):
            self._pending += self._packet(_blanked(head.event))

    def _starts_badly(self, reader: FileReader, pos: int) -> bool:
        """Refuses a position at which no event begins, and returns whether it did."""
        if pos <= len(MAGIC):
            return False
        name = BinlogPosition(reader.file.name, pos)
        is_reached = reader.seek(pos)
        size = reader.limit()
        if not is_reached or pos > size:
            self._refuse(
                IdentityError(
                    f"the folder's file is shorter than {name}" + ("" if not is_reached else f": it has {size} bytes"),
                    place=self._place,
                    remedy="The file was replaced by another one, or by the copy of a part. Copy the server's file "
                    "again.",
                ),
                "Client requested source to start replication from position > file size",
            )
            return True
        header = reader.read(HEADER_SIZE)
        if len(header) < HEADER_SIZE:
            return False
        event_header = events.parse_header(header)
        begins = (event_header.end_log_pos - event_header.length) & 0xFFFFFFFF
        if event_header.length >= HEADER_SIZE and event_header.length <= LARGEST_EVENT and begins == pos & 0xFFFFFFFF:
            return False
        if (
            event_header.end_log_pos == 0 and HEADER_SIZE <= event_header.length <= LARGEST_EVENT
        ):  # MariaDB, inside a transaction
            return False
        self._refuse(
            SourceRefusedError(
                f"no event begins at {name}",
                place=self._place,
                remedy="Give source.start a position that mysqlbinlog shows. If the store ends there, the file was "
                "replaced by another one.",
            ),
            "bogus data in log event",
        )
        return True

    def _refuse(self, error: CdcError, text: str) -> None:
        if self._follow:
            raise error
        payload = b"\xff" + _FATAL.to_bytes(2, "little") + b"#HY000" + text.encode()
        self._pending, self._ended = len(payload).to_bytes(3, "little") + b"\1" + payload, True

    def _advance(self) -> bool:
        """Goes on where the current file has no more whole event. Returns whether there is something to read."""
        assert self._reader is not None
        st = self._st
        if int(st.event_left):
            self._wait_for_copy(self._cut())
            return False
        left = int(st.in_end - st.in_pos)
        if self._finished_at == int(st.file_pos) and not left:
            return self._next()
        files = self._folder.by_number()
        last = self._number >= max(files)
        if self._reader.file.is_packed:
            if left or self._status == k.NO_EVENT:
                self._wait_for_copy(self._cut())
                return False
        elif self._has_grown() or self._replaced(files.get(self._number)):
            return True
        if last:
            if self._status == k.NO_EVENT:
                self._wait_for_copy(self._cut())
            self._again()
            return False
        if left or self._status != k.NEED_INPUT:
            self._wait_for_copy(self._cut())
            self._again()
            return False
        following = files.get(self._number + 1)
        if following is None:
            return self._next()
        return self._require_whole(following) and self._next()

    def _again(self) -> None:
        """Reads the bytes behind the last whole event again when the file has changed: they may have been blank."""
        if self._reader is not None and not self._reader.file.is_packed:
            st = self._st
            st.in_pos = st.in_end = 0
            self._reader.seek(int(st.file_pos))

    def _has_grown(self) -> bool:
        """Whether the file has got more bytes than were read. They may be the rest of an event."""
        assert self._reader is not None
        st, limit = self._st, self._reader.limit()
        if limit < int(st.file_pos):
            self._shrunk = True
            if self._is_settled(("shrunk", limit)):
                raise self._was_replaced(f"it has {limit} bytes, and {int(st.file_pos)} were read")
            return False
        if self._shrunk:
            raise self._was_replaced("it was shorter for a while")
        read_until = int(st.file_pos + st.in_end - st.in_pos)
        if limit > max(int(st.limit), read_until):
            self._again()
            st.limit = limit
            return True
        return False

    def _replaced(self, file: FolderFile | None) -> bool:
        """Goes on in a new copy of the current file, which has its name or is its compressed form. Returns whether
        there is one with more bytes."""
        assert self._reader is not None and self._head is not None
        if file is None:
            return False  # it was removed; the open one is read to its end
        old, st = self._reader, self._st
        try:
            status = file.path.stat()
        except OSError:
            return False
        if (status.st_dev, status.st_ino) == (old.status.st_dev, old.status.st_ino):
            return False
        pos = int(st.file_pos)
        try:
            new = FileReader(file, self._place)
        except CdcError:
            return False
        try:
            head = read_head(new)
            if events.closed(head.event) != events.closed(self._head.event):
                raise self._was_replaced("its first event is another one")
            begin = max(len(MAGIC), pos - _COMPARED_BYTES)
            texts = []
            for reader in (new, old):
                reader.seek(begin)
                texts.append(reader.read(pos - begin))
            if len(texts[0]) < pos - begin and not self._is_settled((file.path.name, status.st_size)):
                new.close()  # the copy has not come so far yet
                old.seek(pos + int(st.in_end - st.in_pos))
                return False
            if texts[0] != texts[1]:
                raise self._was_replaced("its bytes are other ones")
        except CutFileError:
            new.close()
            old.seek(pos + int(st.in_end - st.in_pos))
            return False
        except BaseException:
            new.close()
            raise
        old.close()
        self._reader, self._head = new, head
        st.in_pos = st.in_end = 0
        new.seek(pos)
        st.limit = new.limit()
        self._status = k.NEED_INPUT
        return True

    def _was_replaced(self, how: str) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"the file was replaced by another one while it was read: {how}",
            place=self._at_file(),
            remedy="Capture looks whether it can go on there.",
        )

    def _next(self) -> bool:
        """Opens the next file. Returns False if it is not there yet."""
        files = self._folder.by_number()
        following = files.get(self._number + 1)
        if following is None:
            later = min((number for number in files if number > self._number), default=None)
            if later is not None and self._is_settled(("gap", self._number + 1)):
                name = make_file_name(self._folder.base, self._number + 1)
                raise SourceRefusedError(
                    f"{name} is missing in the folder, and {files[later].name} is there",
                    place=self._place,
                    remedy=f"Copy {name} into the folder, and start capture again; everything before it is in the "
                    "store. If the file is lost, its changes are: start a new destination behind it.",
                )
            return False
        try:
            self._check_following(following)
            self._open(following, len(MAGIC))
        except CutFileError as error:
            if following.number == max(files):
                return False  # it has just been begun
            self._wait_for_copy(error)
            return False
        self._stalled = None
        return True

    def _check_following(self, file: FolderFile) -> None:
        """Checks that the next file was written by the same server, later."""
        assert self._head is not None
        head, before = self._folder.head(file), self._head
        if head.description.flavor != before.description.flavor:
            what = f"was written by {head.description.server_version}, and the file before by "
            what += before.description.server_version
        elif head.server_id != before.server_id:
            what = (
                f"was written by the server with server_id {head.server_id}, and the file before by {before.server_id}"
            )
        elif head.created_s < before.created_s - _CLOCK_STEP_S:
            what = "was created before it"
        elif (lost := self._lost_gtids(file)) is not None:
            what = f"does not know {lost}, which came before it"
        else:
            return
        raise IdentityError(
            f"this file does not follow {make_file_name(self._folder.base, file.number - 1)}: it {what}",
            place=f"{self._place}: {file.path.name}",
            remedy="Remove the foreign file, and copy that of the captured server. If the server has got another "
            "server_id, capture the files from this one on as a new destination.",
        )

    def _lost_gtids(self, file: FolderFile) -> str | None:
        """Returns the GTIDs before the current file that the next one does not know; None if there are none."""
        assert self._reader is not None
        try:
            mine, next_ones = (
                gtids_before_file(read_file_start(self._folder.source, name))
                for name in (self._reader.file.name, file.name)
            )
        except SourceUnavailableError:  # the current file has just been removed
            return None
        lost, flavor = mine - next_ones, self._folder.describe().flavor
        if flavor == "mariadb" and next_ones:  # FLUSH BINARY LOGS DELETE_DOMAIN_ID makes it forget whole domains
            domains = {name.partition("-")[0] for name, _ in next_ones.sources()}
            lost = GtidSet({name: intervals for name, intervals in lost.sources() if name.partition("-")[0] in domains})
        return show_state(lost, flavor) if lost else None

    # --- files that end without saying so

    def _require_whole(self, following: FolderFile) -> bool:
        """Checks that the current file, which ends without ROTATE or STOP between two events, is whole, since a later
        file is there: its server has crashed. Returns False while the copy may still be going on.

        A server that starts after a crash marks its next file as the first one, and MySQL marks the old one as closed.
        If transactions have GTIDs, the next file says which ones are before it.
        """
        assert self._reader is not None and self._head is not None
        try:
            now = self._folder.head(self._reader.file)
            then = self._folder.head(following)
        except CutFileError:
            return False
        except SourceUnavailableError:
            now, then = self._head, self._folder.head(following)
        why: str | None = None
        if now.in_use and now.description.flavor == "mysql":
            why = "it is the copy of a file that its server was still writing"
        elif not then.is_first:
            why = "its end is missing: the server went on to the next file without a crash"
        elif self._follow:  # else this dump may be the one that reads the file's GTIDs
            why = self._missing_gtids(following)
        if why is not None:
            self._wait_for_copy(
                DamagedError(
                    f"the file is not whole, and {following.name} follows: {why}",
                    place=self._at_file(),
                    remedy=WHOLE_COPY,
                )
            )
            return False
        log.warning(
            "a binlog file ends without a last event; its server has crashed in it",
            file=self._reader.file.path.name,
            source=self._folder.address,
        )
        return True

    def _missing_gtids(self, following: FolderFile) -> str | None:
        """Returns which GTIDs the next file expects and this one lacks, as a clause; None if there are none."""
        assert self._reader is not None
        flavor = self._folder.describe().flavor
        expected = gtids_before_file(read_file_start(self._folder.source, following.name))
        missing = expected - gtids_in(self._folder.source, flavor, self._reader.file.name)
        return f"it lacks {missing.count} transactions: {show_state(missing, flavor)}" if missing else None

    def _wait_for_copy(self, error: DamagedError) -> None:
        """Raises the error unless the file may still be being copied."""
        assert self._reader is not None
        if not self._follow and self._number >= max(self._folder.by_number()):
            return
        try:
            status = self._reader.file.path.stat()
            state: object = (self._number, status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            state = (self._number, None)
        if self._is_settled(state):
            raise error
        if self._reader.file.is_packed:  # from its start again, when it has more
            self._reopen_packed()

    def _reopen_packed(self) -> None:
        assert self._reader is not None
        st = self._st
        if int(st.event_left):
            raise SourceUnavailableError(
                "a compressed file ends inside an event", place=self._at_file(), remedy="Capture reads it again."
            )
        self._reader.close()
        self._reader = FileReader(self._reader.file, self._place)
        st.in_pos = st.in_end = 0
        with suppress(CutFileError):
            self._reader.seek(int(st.file_pos))

    def _is_settled(self, state: object) -> bool:
        """Whether something has stayed as it is for long. Without ``follow`` nobody waits for it."""
        if not self._follow:
            return True
        now = time.monotonic()
        if self._stalled is None or self._stalled[0] != state:
            self._stalled = state, now
            log.info("waiting for a binlog file that is not whole", source=self._folder.address, state=str(state))
        return now - self._stalled[1] >= SETTLE_S

    def _cut(self) -> DamagedError:
        end = int(self._st.file_pos)
        what = "bytes that are no event" if self._status == k.NO_EVENT else "a part of an event"
        return DamagedError(
            f"the file is cut off or damaged: behind position {end} it has {what}",
            place=self._at_file(),
            remedy=WHOLE_COPY,
        )

    def _at_file(self) -> str:
        if self._reader is None:
            return self._place
        return self._reader.place

    def _packet(self, event: bytes) -> bytes:
        number = int(self._st.packets) & 255
        self._st.packets += 1
        return (len(event) + 1).to_bytes(3, "little") + bytes([number, 0]) + event


def _blanked(event: bytes) -> bytes:
    """Returns a format description as a server sends it before events that lie further on: without a position and
    without the time of a start, which a reader would take for one."""
    body = bytearray(events.closed(event))
    body[13:17] = bytes(4)
    body[HEADER_SIZE + 52 : HEADER_SIZE + 56] = bytes(4)
    return events.with_checksum(bytes(body))
