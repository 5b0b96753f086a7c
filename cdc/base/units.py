"""Sizes, durations and times as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def human_bytes(size_bytes: int) -> str:
    """Returns a size in the largest fitting unit: ``268435456`` → ``256.0 MiB``."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = size_bytes / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if round(size, 1) < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """Returns a duration in two units at most: ``93784`` → ``1 d 2 h``."""
    rest = round(seconds)
    if rest < 1:
        return f"{seconds:.1f} s"
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def iso_time(time: datetime) -> str:
    """An aware datetime in UTC: ``2026-11-21T09:41:36.123456Z``."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def time_us(time: datetime) -> int:
    """An aware datetime as microseconds since 1970, without rounding."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def iso_time_us(time_us: int) -> str:
    """Microseconds since 1970 as :func:`iso_time` writes them, without rounding."""
    seconds, micros = divmod(time_us, 1_000_000)
    return iso_time(datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros))
