"""Encrypted files: they hold what was written, whatever was cut off and overwritten; and every change is found."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.base.errors import ConfigError, DamagedError, VersionError
from cdc.disk.encryption import append, container
from cdc.disk.encryption.append import AppendFile, WholeFile
from cdc.disk.encryption.container import BLOCK_BYTES, HEADER_SIZE, EncryptedFrame, frames_of
from cdc.disk.encryption.keys import WrappingKey
from cdc.disk.encryption.read import content_size, file_range, map_content, open_content, read_content
from tests.support.encryption import FIRST, SECOND, encrypted

GOLDEN = Path(__file__).parents[3] / "golden" / "encrypted-v1"


@pytest.fixture(autouse=True)
def key(tmp_path: Path) -> Iterator[WrappingKey]:
    with encrypted(tmp_path) as wrapping_key:
        yield wrapping_key


def create(path: Path, data: bytes = b"") -> AppendFile:
    return append.create(path, os.open(path, os.O_RDWR | os.O_CREAT), data)


def reopen(path: Path) -> AppendFile:
    return append.reopen(path, os.open(path, os.O_RDWR))


def write(path: Path, *parts: bytes) -> bytes:
    """Writes a file with a frame for each part, and returns its bytes."""
    file = create(path)
    for part in parts:
        file.append(memoryview(part))
    file.close()
    return path.read_bytes()


def frames(data: bytes | bytearray) -> list[EncryptedFrame]:
    all_frames = [
        f for at in range(0, len(data), BLOCK_BYTES) for f in frames_of(memoryview(data)[at : at + BLOCK_BYTES], at)
    ]
    assert all(frame is not None and frame.is_whole for frame in all_frames)
    return [frame for frame in all_frames if frame is not None]


def content(path: Path) -> bytes:
    with open_content(path) as file:
        return file.read()


def random_changes(path: Path, choose: random.Random) -> bytes:
    """Appends, cuts off, overwrites and reopens a file, and compares each step. Returns the content."""
    file, want = create(path, b"head"), bytearray(b"head")
    for _ in range(choose.randint(1, 30)):
        what = choose.random()
        if what < 0.6:
            data = choose.randbytes(
                choose.choice([0, 1, 5, 300, 5000, 70_000, 200_000, BLOCK_BYTES - choose.randint(0, 99)])
            )
            file.append(memoryview(data), choose.choice([0, len(want) + choose.randint(0, len(data))]))
            want += data
        elif what < 0.75:
            size = choose.randint(0, len(want))
            file.truncate(size)
            del want[size:]
        elif what < 0.85 and len(want) > 10:
            at, data = choose.randint(0, len(want) - 5), choose.randbytes(choose.randint(1, 5))
            file.overwrite(data, at)
            want[at : at + len(data)] = data
        else:
            file.close()
            file = reopen(path)
        assert file.size == content_size(path) == len(want)
        first = choose.randint(0, len(want))
        last = choose.randint(first, len(want))
        assert file.pread(last - first, first) == read_content(path, last - first, first) == want[first:last]
        mapped = map_content(path)
        mapped.load(first, last)
        assert mapped.buf[first:last].tobytes() == want[first:last]
    file.close()
    return bytes(want)


def test_what_is_written_is_read(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    for number in range(40):
        path = tmp_path / str(number)
        want = random_changes(path, choose)
        assert content(path) == want == map_content(path).load_all().tobytes()


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, seed: int) -> None:
    choose, path = random.Random(seed), tmp_path / "file"
    for _ in range(6):
        path.unlink(missing_ok=True)
        want = random_changes(path, choose)
        data = bytearray(path.read_bytes())
        for bit in {
            *range(0, 8 * min(len(data), HEADER_SIZE + 80), 7),
            *(choose.randrange(8 * len(data)) for _ in range(50)),
        }:
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            try:
                plain = content(path)
            except (DamagedError, VersionError, ConfigError):
                plain = want
            # Of a mark that the content ends before frames that nothing replaced, only the mark itself may be damaged. A
            # frame that looks torn ends what can be read, and the file does not look complete.
            assert (
                plain == want
                or not data.startswith(container.MAGIC)
                or want.startswith(plain)
                or content_size(path) > len(plain)
            ), bit
            data[bit // 8] ^= 1 << bit % 8


def test_content_that_was_cut_off_does_not_come_back(tmp_path: Path) -> None:
    """A damaged mark of a cut that claims content: what was before the cut may no longer be there."""
    path = tmp_path / "file"
    file = create(path, b"head")
    file.truncate(1)
    file.append(memoryview(b"new"))
    file.close()
    data = bytearray(path.read_bytes())
    mark = frames(data)[1]
    assert (mark.start, mark.length) == (1, 0)
    data[mark.at] ^= 2
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="not what was written"):
        content(path)


def test_nothing_of_the_content_is_in_the_file(tmp_path: Path) -> None:
    data = write(tmp_path / "file", b"Ada Lovelace" * 1000)
    assert b"Ada" not in data and b"lace" not in data


def test_a_nonce_is_never_used_twice(tmp_path: Path) -> None:
    path = tmp_path / "file"
    seen: set[tuple[int, int]] = set()

    def look() -> None:
        new = {(frame.opening, frame.counter) for frame in frames(path.read_bytes())}
        seen.update(new)

    write(path, b"a" * 1000, b"b" * 1000)
    look()
    count = len(seen)
    for _ in range(5):  # as recovery does after a kill, each time with other bytes
        file = reopen(path)
        file.truncate(1500)
        file.append(memoryview(os.urandom(500)))
        file.close()
        look()
        count += 2  # a mark and a frame
        assert len(seen) == count


@pytest.mark.parametrize("how", ["swap", "repeat", "drop", "older"])
def test_frames_have_their_place(tmp_path: Path, how: str) -> None:
    path = tmp_path / "file"
    data = bytearray(write(path, *[bytes([n]) * 1000 for n in range(5)]))
    first, second, third = (slice(f.at, f.end) for f in frames(data)[1:4])
    if how == "swap":
        data[first], data[second] = data[second], data[first]
    elif how == "repeat":
        data[second] = data[first]
    elif how == "drop":
        del data[second]
    else:
        file = reopen(path)
        file.overwrite(b"x", 2500)
        file.close()
        data[third] = path.read_bytes()[second]
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=f"{path}: .*(are not what was written there|damaged or missing)"):
        content(path)


def test_frames_of_another_file_are_refused(tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, b"x" * 1000, b"y" * 1000) for name in ("first", "second"))
    at = frames(first)[1].at
    (tmp_path / "first").write_bytes(first[:at] + second[at:])
    with pytest.raises(DamagedError, match="are not what was written there"):
        content(tmp_path / "first")


def test_a_file_in_the_place_of_another_one_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "000-0000001-00000000004.binlog", b"x")
    (tmp_path / "000-0000001-00000000004.binlog").rename(tmp_path / "other")
    with pytest.raises(DamagedError, match=r"is the encrypted file 000-0000001-00000000004\.binlog under another name"):
        content(tmp_path / "other")


def test_damage_is_passed_over_where_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "file"
    parts = [os.urandom(50_000) for _ in range(6)]
    data = bytearray(write(path, *parts))
    second = frames(data)[1]
    data[second.at + 30] ^= 1
    path.write_bytes(data)
    mapped = map_content(path)
    mapped.load(0, len(mapped.buf), lenient=True)
    want = bytearray(b"".join(parts))
    want[second.start : second.start + second.length] = bytes(second.length)
    assert mapped.buf.tobytes() == want
    assert mapped.fault is not None and f"the encrypted bytes {second.at} to {second.end}" in str(mapped.fault)
    assert read_content(path, 50_000, 0) == parts[0]
    assert read_content(path, 50_000, 250_000) == parts[5]


def test_a_torn_end_is_not_part_of_the_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = write(path, b"x" * 100, b"y" * 100)
    first, second = frames(data)
    for size in range(first.end + 1, second.end):
        path.write_bytes(data[:size])
        assert content_size(path) > 100  # so it never looks complete
        assert read_content(path, 100, 0) == b"x" * 100
        assert read_content(path, 101, 0) == b"x" * 100
        with pytest.raises(DamagedError, match="ends at byte 100"):
            map_content(path).load_all()


@pytest.mark.parametrize(
    "size", [0, 1, container.FIRST_FULL, container.FIRST_FULL + 1, container.FIRST_FULL + container.FULL, 3_000_000]
)
def test_whole_files(tmp_path: Path, key: WrappingKey, size: int) -> None:
    data, path = os.urandom(size), tmp_path / "whole"
    whole = WholeFile(key)
    made = b"".join(whole.bytes_of([data[at : at + 99_999] for at in range(0, size, 99_999)]))
    assert made == b"".join(whole.bytes_of([data]))
    assert len(made) == container.full_size(size) and container.full_content(len(made)) == size
    path.write_bytes(made)
    assert content(path) == data
    if size > 1_000_000:
        runs = [(0, 100), (150_000, 160_000), (size - 100, size)]
        with (tmp_path / "part").open("wb") as part:
            for start, stop in container.ranges_of(runs, size):
                part.seek(start)
                part.write(made[start:stop])
        mapped = map_content(tmp_path / "part")
        for start, stop in runs:
            mapped.load(start, stop)
            assert mapped.buf[start:stop].tobytes() == data[start:stop]


def test_the_part_of_a_file_that_holds_some_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    first, second, third = frames(write(path, b"a" * 10, b"b" * 10, b"c" * 10))
    assert file_range(path, 0, 30) == (first.at, third.end)
    assert file_range(path, 12, 15) == (second.at, second.end)
    assert file_range(path, 10, 21) == (second.at, third.end)


def test_the_wrong_key_is_told(tmp_path: Path) -> None:
    write(tmp_path / "file", b"x")
    with encrypted(tmp_path, SECOND), pytest.raises(ConfigError) as told:
        content(tmp_path / "file")
    assert str(told.value) == (
        f"{tmp_path}/file: is encrypted with the key {WrappingKey.of(FIRST).id}, which is not among those that are configured "
        f"({WrappingKey.of(SECOND).id}). Add that key to store.encryption.old_keys."
    )
    assert not told.value.retryable
    with encrypted(tmp_path, None), pytest.raises(ConfigError, match="is not among those that are configured"):
        content(tmp_path / "file")
    with encrypted(tmp_path, SECOND, FIRST):
        assert content(tmp_path / "file") == b"x"


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "file", b"x"))
    data[4:6] = (2).to_bytes(2, "little")
    data[HEADER_SIZE - 4 : HEADER_SIZE] = zlib.crc32(data[: HEADER_SIZE - 4]).to_bytes(4, "little")
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(VersionError, match="is an encrypted file of format version 2; this Towpath knows version 1"):
        content(tmp_path / "file")


def test_a_forged_header_is_refused(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "file", b"x"))
    data[12] |= container.FULL_BLOCKS
    data[HEADER_SIZE - 4 : HEADER_SIZE] = zlib.crc32(data[: HEADER_SIZE - 4]).to_bytes(4, "little")
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(DamagedError, match="the header of this encrypted file is not the one that was written"):
        content(tmp_path / "file")


def test_version_1_is_read() -> None:
    """``encrypted-v1`` was written by ``make_encrypted.py`` with the key of the bytes 0 to 31."""
    with encrypted(GOLDEN):
        assert content(GOLDEN / "log") == b"".join(b"%07d\n" % n for n in range(20_000)) + b"the end\n"
        assert content(GOLDEN / "whole.sealed") == b"".join(b"%07d\n" % n for n in range(10_000))
