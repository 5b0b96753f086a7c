"""The disk watch: thresholds, when it looks at the disk, and the errors before the disk is full."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cdc.base.errors import ConfigError, StorageError
from cdc.store.retention.disk import DiskWatch, FillLevel, Ratios, Usage, disk_usage
from cdc.testing.disk import FakeClock, FakeDisk


def watch(disk: FakeDisk, clock: FakeClock | None = None, ratios: Ratios | None = None) -> DiskWatch:
    return DiskWatch(Path("store"), ratios, usage=disk, clock=clock or FakeClock())


@pytest.mark.parametrize(
    ("used", "level"),
    [
        (0, FillLevel.OK),
        (749_999, FillLevel.OK),
        (750_000, FillLevel.WARN),
        (849_999, FillLevel.WARN),
        (850_000, FillLevel.CLEAN),
        (899_999, FillLevel.CLEAN),
        (900_000, FillLevel.STOP),
        (1_000_000, FillLevel.STOP),
    ],
)
def test_levels(used: int, level: FillLevel) -> None:
    assert watch(FakeDisk(1_000_000, used)).look() is level


@pytest.mark.parametrize(
    "ratios", [(0.8, 0.7, 0.9), (0.7, 0.95, 0.9), (0, 0.5, 0.9), (0.5, 0.6, 1.1), (-0.1, 0.5, 0.9)]
)
def test_ratios_that_contradict_each_other(ratios: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match="disk ratios warn"):
        Ratios(*ratios)


def test_it_looks_once_a_second_and_every_64_mib() -> None:
    disk, clock = FakeDisk(1 << 40), FakeClock()
    seen = watch(disk, clock)
    for _ in range(100):
        seen.look(1000)
    assert disk.looks == 1
    clock.now = 1.0
    seen.look()
    assert disk.looks == 2
    for _ in range(63):
        seen.look(1 << 20)
    assert disk.looks == 2
    seen.look(1 << 20)
    assert disk.looks == 3


def test_nothing_is_written_at_stop_until_there_is_room_again() -> None:
    disk, clock = FakeDisk(1_000_000, 890_000), FakeClock()
    seen = watch(disk, clock)
    seen.check(1000)
    disk.used = 905_000
    clock.now = 1.0
    with pytest.raises(StorageError) as caught:
        seen.check(1000)
    for word in (
        "90.5% full (883.8 KiB of 976.6 KiB)",
        "90.0%",
        "stop_ratio",
        "Nothing is lost",
        "cdc maintain",
        "store",
    ):
        assert word in str(caught.value)
    disk.used = 880_000  # the clock stands still: at STOP every call looks anew
    seen.check(1000)


def test_a_write_that_would_leave_too_little_is_refused_before_it() -> None:
    seen = watch(FakeDisk(1_000_000, 880_000))
    seen.check(20_000)
    with pytest.raises(StorageError):
        seen.check(20_001)


def test_how_much_has_to_go() -> None:
    disk = FakeDisk(1_000_000, 849_000)
    seen = watch(disk, ratios=Ratios())
    seen.look()
    assert seen.to_free() == 0
    disk.used = 870_000
    second_watch = watch(disk)
    second_watch.look()
    assert second_watch.to_free() == 20_001
    disk.used -= second_watch.to_free()
    assert watch(disk).look() is FillLevel.WARN


def test_each_change_is_said_once() -> None:
    disk, clock = FakeDisk(1_000_000, 0), FakeClock()
    seen = watch(disk, clock)
    with capture_logs() as logs:
        for used in (0, 760_000, 770_000, 860_000, 910_000, 920_000, 100_000):
            disk.used = used
            clock.now += 1
            seen.look()
    assert [(record["log_level"], record["level"]) for record in logs] == [
        ("warning", "warn"),
        ("warning", "clean"),
        ("error", "stop"),
        ("info", "ok"),
    ]
    assert logs[2]["stop_ratio"] == 0.9 and logs[2]["used_ratio"] == 0.91


def test_a_disk_that_does_not_tell_is_an_error() -> None:
    def broken(path: Path) -> Usage:
        raise OSError(5, "Input/output error")

    with pytest.raises(StorageError, match="Input/output error"):
        DiskWatch(Path("store"), usage=broken).look()


def test_many_threads(tmp_path: Path) -> None:
    disk = FakeDisk(1 << 40)
    seen = watch(disk)
    threads = [threading.Thread(target=lambda: [seen.look(1 << 20) for _ in range(640)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.looks == 1 + (4 * 640 - 1) // 64


def test_a_real_disk(tmp_path: Path) -> None:
    usage = disk_usage(tmp_path)
    assert 0 < usage.free < usage.total and 0 < usage.ratio < 1
