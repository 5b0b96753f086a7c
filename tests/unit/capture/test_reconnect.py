"""When capture reconnects, how long it pauses, and when it gives up."""

from __future__ import annotations

import pytest

from cdc.base.errors import CdcError, CorruptStreamError, DamagedError, SourceRefusedError, SourceUnavailableError
from cdc.binlog.positions import BinlogPosition
from cdc.capture.reconnect import ReconnectPolicy

AT = BinlogPosition("binlog.000002", 157)


def test_pauses_double_up_to_half_a_minute_and_reset_when_something_was_received() -> None:
    policy = ReconnectPolicy(10, bounded=False)
    pauses = []
    for _ in range(8):
        assert policy.failed(received=False)
        pauses.append(policy.pause_s())
    longest = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True))
    assert policy.failed(received=True)
    assert policy.pause_s() <= 0.5


def test_captures_that_lost_one_server_do_not_come_back_at_once() -> None:
    assert len({ReconnectPolicy(10, bounded=False).pause_s() for _ in range(20)}) > 15


def test_a_bounded_capture_gives_up_after_five_attempts() -> None:
    policy = ReconnectPolicy(10, bounded=True)
    assert [policy.failed(received=False) for _ in range(5)] == [True] * 4 + [False]


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (CorruptStreamError("the checksum is wrong"), DamagedError),
        (SourceUnavailableError("the server ended the dump"), SourceRefusedError),
    ],
)
def test_connections_without_progress_end_capture_with_the_position(error: CdcError, raised: type[CdcError]) -> None:
    policy = ReconnectPolicy(3, bounded=False)
    policy.connecting(41)
    policy.stuck(error, "source db:3306", AT, 42)  # it stored something
    policy.stuck(error, "source db:3306", AT, 42)
    policy.stuck(error, "source db:3306", AT, 42)
    with pytest.raises(raised, match="3 connections in a row ended there") as caught:
        policy.stuck(error, "source db:3306", AT, 42)
    assert caught.value.place == "source db:3306: binlog.000002, position 157"
    assert error.message in caught.value.message and caught.value.remedy


def test_progress_resets_the_count() -> None:
    policy = ReconnectPolicy(2, bounded=False)
    error = CorruptStreamError("the checksum is wrong")
    for last_seq in range(10):
        policy.connecting(last_seq)
        policy.stuck(error, "source db:3306", AT, last_seq)
