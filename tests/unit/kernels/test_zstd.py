"""The functions of zstd that kernels call, and a machine that lacks them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import zstandard
from structlog.testing import capture_logs

from cdc.kernels import zstd


@pytest.fixture(autouse=True)
def looked_up_anew() -> Iterator[None]:
    zstd._library.cache_clear()
    yield
    zstd._library.cache_clear()


def test_the_systems_library_unpacks() -> None:
    content = b"towpath " * 100
    packed = zstandard.compress(content)
    unpacker = zstd.unpacker()
    assert unpacker is not None
    room_and_size = (ctypes.c_void_p, ctypes.c_size_t)
    call = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, *room_and_size, ctypes.c_char_p, ctypes.c_size_t)
    room = ctypes.create_string_buffer(len(content))
    n = call(unpacker.function)(unpacker.context, ctypes.addressof(room), len(content), packed, len(packed))
    assert room.raw[:n] == content


@pytest.mark.parametrize("lacking", zstd.FUNCTIONS)
def test_a_function_that_has_vanished_is_named(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    class Changed:
        def __init__(self, path: str) -> None:
            assert path == zstd.LIBRARY

        def __getattr__(self, name: str) -> object:
            if name == lacking:
                raise AttributeError(name)
            return object()

    monkeypatch.setattr("cdc.kernels.zstd.ctypes.CDLL", Changed)
    with capture_logs() as logs:
        assert zstd.unpacker() is None
        assert zstd.unpacker() is None
    (line,) = logs
    assert line["reason"] == f"it lacks {lacking}"


def test_a_machine_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "LIBRARY", "libzstd-that-is-not-there.so.1")
    with capture_logs() as logs:
        assert zstd.unpacker() is None
    (line,) = logs
    assert line["log_level"] == "warning"
    assert "install libzstd1" in line["event"]
    assert "libzstd-that-is-not-there.so.1" in line["reason"]
