"""The kernels that read a binlog file's headers: packets as a server sends them, and the end of the last whole event."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from cdc.binlog import packet_kernel as k
from cdc.binlog.constants import FULL_PACKET
from cdc.testing.binlog import BinlogBuilder, packets_of


def log_with(padding: int) -> BinlogBuilder:
    log = BinlogBuilder()
    for number in range(30):
        log.transaction("shop", "orders", [number])
    log.gtid()
    log.query("BEGIN")
    log.table_map("shop", "orders", padding=padding)
    log.rows("shop", "orders", [1])
    log.xid()
    log.transaction("shop", "orders", [2])
    return log


def packed(pack: Callable[..., int], data: bytes, rng: random.Random) -> tuple[bytes, int, k.PacketState]:
    """Feeds the events of a file in pieces. Returns the packets, the last status and the state."""
    st = k.PacketState.new()
    st.file_pos, st.limit = 4, len(data)
    src = np.empty(1 << 20, dtype=np.uint8)
    output, at, status = bytearray(), 4, k.NEED_INPUT
    while True:
        if status == k.NEED_INPUT:
            unread = src[st.in_pos : st.in_end].copy()
            piece = data[at : at + rng.randrange(1, len(src) - len(unread))]
            if not piece:
                return bytes(output), status, st
            src[: len(unread)] = unread
            src[len(unread) : len(unread) + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            st.in_pos, st.in_end = 0, len(unread) + len(piece)
            at += len(piece)
        elif status == k.RARE:
            st.passes = 1
        elif status != k.OUT_FULL:
            return bytes(output), status, st
        out = np.empty(rng.randrange(1 << 17, 1 << 20), dtype=np.uint8)
        st.out_pos = 0
        status = pack(st, src, out)
        output += out[: st.out_pos].tobytes()


@pytest.mark.parametrize("pack", [k.pack, k.pack.py_func])
def test_packets_are_those_of_a_server(pack: Callable[..., int]) -> None:
    rng = random.Random(1)
    largest = max(len(event) for event in log_with(1 << 16).events)
    exact = FULL_PACKET - 1 - (largest - (1 << 16))  # the event fills a packet
    for padding in (0, 1000, 1 << 16, exact - 1, exact, exact + 1, 2 * FULL_PACKET):
        log = log_with(padding)
        wanted = b"".join(_numbered(log.events))
        output, status, st = packed(pack, log.data, rng)
        assert output == wanted, padding
        assert status == k.NEED_INPUT and st.file_pos == len(log.data) and st.last_time == log.timestamp


def _numbered(events: list[bytes]) -> list[bytes]:
    number, packets = 0, []
    for event in events:
        packets.append(packets_of(event, number))
        number += (len(event) + 1) // FULL_PACKET + 1
    return packets


@pytest.mark.parametrize("pack", [k.pack, k.pack.py_func])
def test_an_event_is_begun_when_all_of_it_is_there(pack: Callable[..., int]) -> None:
    log = log_with(100)
    boundaries = [4]
    for event in log.events:
        boundaries.append(boundaries[-1] + len(event))
    for cut in (1, 5, 18, 19, 30, 60):
        data = log.data[:-cut]
        _, status, st = packed(pack, data, random.Random(cut))
        assert st.file_pos == max(b for b in boundaries if b <= len(data))
        assert status in (k.CUT, k.NEED_INPUT)
    zeros = log.data + bytes(100)
    _, status, st = packed(pack, zeros, random.Random(1))
    assert (status, st.file_pos) == (k.NO_EVENT, len(log.data))


@pytest.mark.parametrize("walk", [k.walk, k.walk.py_func])
@pytest.mark.parametrize("cut", [0, 1, 19, 40])
def test_the_end_of_the_last_whole_event(walk: Callable[..., int], cut: int) -> None:
    log = log_with(1 << 18)
    data = np.frombuffer(log.data[: len(log.data) - cut], dtype=np.uint8)
    boundaries = [4]
    for event in log.events:
        boundaries.append(boundaries[-1] + len(event))
    st = k.PacketState.new()
    st.file_pos, st.limit = 4, len(data)
    while st.file_pos < len(data):
        at = int(st.file_pos)
        src = data[at : at + 5000].copy()
        st.in_pos, st.in_end = 0, len(src)
        status = walk(st, src)
        if status != k.NEED_INPUT or st.file_pos == at:
            break
    assert st.event_left == 0
    assert st.file_pos == max(b for b in boundaries if b <= len(data))
