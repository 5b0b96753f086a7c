"""A folder of binlog files as a source: which files it holds, who wrote them, and where they end.

The files are those of one server, ``BASE.NNNNNN``, each plain or compressed (``.gz``, ``.zst``). Other names are
ignored, so that an index file, checksums and half-copied files under temporary names may lie beside them. If a file is
there in both forms, the plain one is read.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import time
import zlib
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import zstandard

from cdc.base.errors import (
    CdcError,
    ConfigError,
    DamagedError,
    IdentityError,
    SourceRefusedError,
    SourceUnavailableError,
    StorageError,
    UnsupportedError,
)
from cdc.binlog import events
from cdc.binlog import packet_kernel as k
from cdc.binlog.constants import FLAG_IN_USE, HEADER_SIZE, MAGIC
from cdc.binlog.gtids import Flavor, GtidSet
from cdc.binlog.positions import MAX_OFFSET, BinlogPosition, make_file_name
from cdc.config import SourceConfig
from cdc.disk.encryption.container import MAGIC as SEGMENT_MAGIC
from cdc.source.binlog_files import BinlogFiles
from cdc.source.connection import place_of
from cdc.source.server import BinlogFileInfo, ClockProbe, ServerInfo, parse_version

_NAME = re.compile(r"(?P<base>.+)\.(?P<number>\d{6,10})(?P<packed>\.gz|\.zst)?")
_ENCRYPTED_MAGIC = b"\xfdbin"
_FLAG_RELAY_LOG = 0x0040
_LARGEST_HEAD = 4096
_WALKED_BYTES = 1 << 20
_BEING_COPIED_S = 30.0
"""A file that was changed so lately may be being copied."""
_ROW_METADATA = {"mysql": (8, 0, 1), "mariadb": (10, 5)}

WHOLE_COPY = "Copy the whole file again, and start capture again; it goes on where the store ends."


@dataclass(frozen=True)
class FolderFile:
    """A binlog file in a folder."""

    name: str
    """Without the ending of a compressed one."""
    number: int
    path: Path

    @property
    def is_packed(self) -> bool:
        return self.path.name != self.name


@dataclass(frozen=True)
class FileHead:
    """The format description at the start of a file."""

    event: bytes
    description: events.FormatDescription
    server_id: int
    created_s: int
    """Unix time at which the server created the file."""
    is_first: bool
    """Whether it is the first file after a start of the server."""
    in_use: bool
    """Whether the server was writing it when it was copied."""


class BinlogFolder(BinlogFiles):
    """The binlog files in the folder of a source. It is listed anew by each question."""

    def __init__(self, source: SourceConfig) -> None:
        """Lists the folder. Raises SourceUnavailableError if it is missing or holds no binlog files,
        SourceRefusedError."""
        assert source.folder is not None
        self.source = source
        self.folder: Path = source.folder
        self.address = place_of(source)
        self.place = f"source {self.address}"
        self.base = ""
        self._ends: dict[tuple[str, int, int], _Walked] = {}
        self._described: ServerInfo | None = None
        self._gtids: tuple[BinlogPosition, GtidSet] | None = None
        self.by_number()

    # --- files

    def by_number(self) -> dict[int, FolderFile]:
        """Returns the files by their numbers, in their order. Raises SourceUnavailableError, SourceRefusedError."""
        by_base: dict[str, dict[int, FolderFile]] = {}
        for name in self._names():
            match = _NAME.fullmatch(name)
            if match is None or _NAME.fullmatch(match["base"]):
                continue
            number = int(match["number"])
            plain = make_file_name(match["base"], number)
            if plain != f"{match['base']}.{match['number']}":
                continue
            files = by_base.setdefault(match["base"], {})
            file = files.get(number)
            if file is None or file.is_packed:
                files[number] = FolderFile(plain, number, self.folder / name)
        if self.base and self.base in by_base:
            return dict(sorted(by_base[self.base].items()))
        bases = [base for base, files in by_base.items() if _is_binlog(files[min(files)])]
        if len(bases) > 1:
            raise SourceRefusedError(
                f"the folder holds the binlogs of several servers, or relay logs too: {', '.join(sorted(bases))}",
                place=self.place,
                remedy="Give each server's files a folder of their own, and move relay logs away.",
            )
        if not bases and by_base:
            bases = [min(by_base)]  # reading it says what is wrong with it
        if not bases or (self.base and self.base not in bases):
            what = f"no binlog file {self.base}.NNNNNN any more" if self.base else "no binlog file like binlog.000001"
            raise SourceUnavailableError(
                f"the folder holds {what}",
                place=self.place,
                remedy="Check that the disk is mounted, that source.url names the right folder, and that files have "
                "been copied into it.",
            )
        self.base = bases[0]
        return dict(sorted(by_base[self.base].items()))

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except OSError as error:
            raise folder_error(error, self.place, "the folder") from None

    def file(self, name: str) -> FolderFile | None:
        """Returns a file by its name; None if it is not there."""
        return next((file for file in self.by_number().values() if file.name == name), None)

    def newest(self) -> FolderFile:
        """Returns the newest file."""
        files = self.by_number()
        return files[max(files)]

    def files(self) -> list[BinlogFileInfo]:
        files = list(self.by_number().values())
        return [BinlogFileInfo(file.name, self._size(file, file is files[-1])) for file in files]

    def _size(self, file: FolderFile, is_newest: bool) -> int:
        if not file.is_packed:
            return _status(file, self.place).st_size
        return self._walked(file).end if is_newest else MAX_OFFSET

    def missing(self, begin: int = 0) -> list[str]:
        """Returns the names that lack between the oldest and the newest file, from the number ``begin`` on."""
        files = self.by_number()
        return [make_file_name(self.base, n) for n in range(max(begin, min(files)), max(files)) if n not in files]

    def require(self, position: BinlogPosition, *, first: bool) -> None:
        file, files = self.file(position.file), self.by_number()
        what = f"source.start names {position}" if first else f"the store ends at {position}"
        if file is None:
            has = f"the folder has {files[min(files)].name} to {files[max(files)].name}"
            remedy = "Copy the file into the folder, or correct source.start."
            if first:
                raise ConfigError(f"{what}, and {has}", place=self.place, remedy=remedy)
            raise SourceRefusedError(
                f"{what}, and {has}",
                place=self.place,
                remedy=f"Copy {position.file} and the files behind it into the folder. If they are lost, so are their "
                "changes: start a new destination.",
            )
        if file.is_packed:
            return  # it is unpacked when the position is looked for
        status = _status(file, self.place)
        if position.pos <= status.st_size:
            return
        text = f"{what}, and the file has {status.st_size} bytes"
        if first:
            raise ConfigError(text, place=self.place, remedy="Write a position that mysqlbinlog shows, or earliest.")
        if abs(time.time() - status.st_mtime) < _BEING_COPIED_S:
            raise SourceUnavailableError(text, place=self.place, remedy="It may be being copied; capture tries again.")
        raise IdentityError(
            text,
            place=self.place,
            remedy="The file was replaced by another one, or by the copy of a part. Copy the server's file again.",
        )

    # --- what the files say

    def head(self, file: FolderFile) -> FileHead:
        """Reads the format description of a file. Raises DamagedError, UnsupportedError, SourceUnavailableError."""
        with closing(FileReader(file, self.place)) as reader:
            return read_head(reader)

    def describe(self) -> ServerInfo:
        if self._described is None:
            head = self.head(self.newest())
            flavor: Flavor = "mariadb" if head.description.flavor == "mariadb" else "mysql"
            version = parse_version(head.description.server_version)
            self._described = ServerInfo(
                flavor=flavor,
                version=head.description.server_version,
                version_info=version,
                server_uuid=self.source.server_uuid or f"server-id-{head.server_id}",
                server_id=head.server_id,
                has_row_metadata=version >= _ROW_METADATA[flavor],
            )
        return self._described

    def end(self) -> BinlogPosition:
        newest = self.newest()
        return BinlogPosition(newest.name, self._walked(newest).end)

    def probe(self) -> ClockProbe:
        newest = self.newest()
        walked = self._walked(newest)
        # A session may give its events a time in the future (SET timestamp), but the file was not written then.
        time_s = min(walked.time_s, walked.signature[1] // 1_000_000_000)
        return ClockProbe(time_s * 1_000_000, BinlogPosition(newest.name, walked.end), None)

    def cut_bytes(self) -> int:
        """Returns the number of bytes behind the last whole event."""
        newest = self.newest()
        walked = self._walked(newest)
        return 0 if newest.is_packed else max(0, _status(newest, self.place).st_size - walked.end)

    def executed_gtids(self, flavor: Flavor) -> GtidSet | None:
        from cdc.source.resume import gtids_in  # it imports the readers of dumps, which read folders too

        end = self.end()
        if self._gtids is None or self._gtids[0] != end:
            self._gtids = end, gtids_in(self.source, flavor, end.file)
        return self._gtids[1] if self._gtids[1] or flavor == "mariadb" else None

    def close(self) -> None:
        """Does nothing: those who read files open them."""

    # --- ends

    def _walked(self, file: FolderFile) -> _Walked:
        """Goes through the headers of a file, as far as it has whole events. What was walked before is not read
        again, unless the file is compressed and has changed."""
        status = _status(file, self.place)
        walked = self._ends.get((file.path.name, status.st_dev, status.st_ino))
        if walked is not None and walked.signature == (status.st_size, status.st_mtime_ns):
            return walked
        with closing(FileReader(file, self.place)) as reader:
            again = walked is not None and not file.is_packed and walked.end <= status.st_size
            if not again:
                read_head(reader)
            at, time_s = (walked.end, walked.time_s) if again and walked is not None else (len(MAGIC), 0)
            reader.seek(at)
            end, time_s = _walk(reader, at, time_s)
        self._ends = {
            (file.path.name, status.st_dev, status.st_ino): _Walked(end, time_s, (status.st_size, status.st_mtime_ns))
        }
        return next(iter(self._ends.values()))


@dataclass(frozen=True)
class _Walked:
    """The part of a file whose headers were read."""

    end: int
    """The end of the last whole event."""
    time_s: int
    """The newest time in a header, Unix time."""
    signature: tuple[int, int]
    """Size and time of modification."""


def _walk(reader: FileReader, at: int, time_s: int) -> tuple[int, int]:
    src = np.empty(_WALKED_BYTES, dtype=np.uint8)
    st = k.PacketState.new()
    st.file_pos, st.last_time = at, time_s
    st.limit = reader.limit()
    end = at
    while True:
        rest = int(st.in_end - st.in_pos)
        src[:rest] = src[int(st.in_pos) : int(st.in_end)].copy()
        try:
            n = reader.read_into(src.data[rest:])
        except DamagedError:  # a compressed file that is still being copied, or cut off: its reader says so
            n = 0
        st.in_pos, st.in_end = 0, rest + n
        status = k.walk(st, src) if n else k.CUT
        if st.event_left == 0:
            end, time_s = int(st.file_pos), int(st.last_time)
        if status != k.NEED_INPUT:
            return end, time_s


# --- reading one file


class FileReader:
    """The bytes of a file, unpacked in constant memory."""

    def __init__(self, file: FolderFile, place: str) -> None:
        """Opens the file. Raises SourceUnavailableError, SourceRefusedError."""
        self.file = file
        self.place = f"{place}: {file.path.name}"
        try:
            self._raw = file.path.open("rb", buffering=0)
        except OSError as error:
            raise folder_error(error, place, file.path.name) from None
        self.status = os.fstat(self._raw.fileno())
        self._at = 0
        self._data: IO[bytes] = self._unpacking()

    def _unpacking(self) -> IO[bytes]:
        self._at = 0
        self._raw.seek(0)
        if self.file.path.suffix == ".gz":
            return cast("IO[bytes]", gzip.GzipFile(fileobj=self._raw, mode="rb"))
        if self.file.path.suffix == ".zst":
            decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
            return cast("IO[bytes]", decompressor.stream_reader(self._raw, read_across_frames=True, closefd=False))
        return self._raw

    def limit(self) -> int:
        """Returns the size of the file now; the largest possible one if it is compressed."""
        return MAX_OFFSET if self.file.is_packed else os.fstat(self._raw.fileno()).st_size

    def read_into(self, buffer: memoryview) -> int:
        """Reads bytes and returns their number; 0 at the end. Raises DamagedError if they cannot be unpacked, also
        because the file ends too early."""
        try:
            n = cast("io.RawIOBase", self._data).readinto(buffer) or 0
        except EOFError:
            raise CutFileError(
                f"the compressed file is cut off behind byte {self._at} of its content",
                place=self.place,
                remedy=WHOLE_COPY,
            ) from None
        except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise DamagedError(
                f"the file cannot be unpacked behind byte {self._at} of its content: {error}",
                place=self.place,
                remedy=WHOLE_COPY,
            ) from None
        except OSError as error:
            raise StorageError(f"cannot be read: {error.strerror}", place=self.place) from None
        self._at += n
        return n

    def read(self, size: int) -> bytes:
        """Reads so many bytes, or fewer at the end."""
        data = bytearray(size)
        at = 0
        while at < size and (n := self.read_into(memoryview(data)[at:])):
            at += n
        return bytes(data[:at])

    def seek(self, pos: int) -> bool:
        """Continues at a position. Returns False if a compressed file ends before it."""
        if not self.file.is_packed:
            self._raw.seek(pos)
            self._at = pos
            return True
        if pos < self._at:
            self._data = self._unpacking()
        scratch = bytearray(1 << 18)
        while self._at < pos:
            if not self.read_into(memoryview(scratch)[: min(len(scratch), pos - self._at)]):
                return False
        return True

    def close(self) -> None:
        """Closes the file."""
        self._raw.close()


def read_head(reader: FileReader) -> FileHead:
    """Reads the start of a file and checks that a server wrote it as its binlog. Raises CutFileError while the file is
    too short for that, DamagedError, UnsupportedError."""
    reader.seek(0)
    magic = reader.read(len(MAGIC))
    if magic == _ENCRYPTED_MAGIC:
        raise encrypted(reader.place)
    if magic == SEGMENT_MAGIC:
        raise SourceRefusedError(
            "the file is an encrypted segment of a store, and no binlog file",
            place=reader.place,
            remedy="Write its content to another folder with `cdc inspect SEGMENT --decrypt --plain FILE`.",
        )
    if MAGIC.startswith(magic) and len(magic) < len(MAGIC):
        raise CutFileError("the file is too short for a binlog file", place=reader.place, remedy=WHOLE_COPY)
    if magic != MAGIC:
        raise DamagedError(
            f"is not a binlog file: it begins with {magic.hex(' ')} instead of {MAGIC.hex(' ')}",
            place=reader.place,
            remedy="Remove it from the folder, or copy the binlog file of this name again.",
        )
    header = reader.read(HEADER_SIZE)
    length = int.from_bytes(header[9:13], "little")
    rest = reader.read(max(0, length - HEADER_SIZE)) if HEADER_SIZE <= length <= _LARGEST_HEAD else b""
    if len(header) < HEADER_SIZE or (len(header) + len(rest) < length <= _LARGEST_HEAD):
        raise CutFileError("the file ends inside its first event", place=reader.place, remedy=WHOLE_COPY)
    event = header + rest
    try:
        description = events.parse_format_description(event)
    except (DamagedError, UnsupportedError) as error:
        error.place = reader.place
        raise
    closed = events.closed(event)
    if description.has_checksum and closed != events.with_checksum(closed):
        raise DamagedError("the checksum of its first event is wrong", place=reader.place, remedy=WHOLE_COPY)
    event_header = events.parse_header(event)
    if event_header.flags & _FLAG_RELAY_LOG:
        raise relay_log(reader.place)
    return FileHead(
        event=event,
        description=description,
        server_id=event_header.server_id,
        created_s=event_header.timestamp,
        is_first=any(event[HEADER_SIZE + 52 : HEADER_SIZE + 56]),
        in_use=bool(event_header.flags & FLAG_IN_USE),
    )


class CutFileError(DamagedError):
    """A file ends too early. It may be one that is being copied."""


def relay_log(place: str) -> SourceRefusedError:
    """Returns the error for a file that is no server's own binlog."""
    return SourceRefusedError(
        "is a relay log, or a segment of a store: its positions are those of other files",
        place=place,
        remedy="Use the binlog files of a server (log_bin). A replica writes its own with log_replica_updates=ON.",
    )


def encrypted(place: str) -> SourceRefusedError:
    """Returns the error for an encrypted file."""
    return SourceRefusedError(
        "the file is encrypted, and only its server has the key",
        place=place,
        remedy="Let the server send its binlog: `mysqlbinlog --read-from-remote-server --raw` writes files without "
        "encryption. Or capture from the server.",
    )


def folder_error(error: OSError, place: str, what: str) -> CdcError:
    """Translates an error of the operating system about the folder or a file in it."""
    reason = error.strerror or str(error)
    if isinstance(error, PermissionError):
        return SourceRefusedError(
            f"{what} may not be read by this user: {reason}",
            place=place,
            remedy="Give the user of capture the right to list the folder and to read its files.",
        )
    if isinstance(error, NotADirectoryError):
        return ConfigError(f"{what} is not a folder", place=place, remedy="Correct source.url.")
    return SourceUnavailableError(
        f"{what} cannot be read: {reason}",
        place=place,
        remedy="Check that the disk is mounted and that source.url names the right folder.",
    )


def _is_binlog(file: FolderFile) -> bool:
    """Whether a file begins like a binlog, encrypted or not. One that cannot be read counts as one."""
    try:
        with closing(FileReader(file, "")) as reader:
            return reader.read(len(MAGIC)) in (MAGIC, _ENCRYPTED_MAGIC, SEGMENT_MAGIC)
    except CdcError:
        return True


def _status(file: FolderFile, place: str) -> os.stat_result:
    try:
        return file.path.stat()
    except OSError as error:
        raise folder_error(error, place, file.path.name) from None
