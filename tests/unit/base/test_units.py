"""Sizes and durations as text."""

from __future__ import annotations

import pytest

from cdc.base.units import human_bytes, human_seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.25, "0.2 s"), (59, "59 s"), (61, "1 min 1 s"), (93784, "1 d 2 h"), (86400, "1 d")]
)
def test_human_seconds(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_human_bytes() -> None:
    sizes = (5, 1023, 2048, (1 << 20) - 1, 268435456, (1 << 30) - 1, 1 << 41, 1 << 52)
    texts = ["5 B", "1023 B", "2.0 KiB", "1.0 MiB", "256.0 MiB", "1.0 GiB", "2.0 TiB", "4096.0 TiB"]
    assert [human_bytes(size) for size in sizes] == texts
