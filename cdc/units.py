"""Sizes, durations and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def human_bytes(size_bytes: int) -> str:
    """A size in the unit that fits it: ``268435456`` → ``256.0 MiB``."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = size_bytes / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if round(size, 1) < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def human_seconds(seconds: float) -> str:
    """A duration in two units at most: ``93784`` → ``1 d 2 h``."""
    rest = round(seconds)
    if rest < 1:
        return f"{seconds:.1f} s"
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def iso_us(time_us: int | None) -> str | None:
    """Microseconds since 1970 as ISO 8601 in UTC, without rounding; None stays None."""
    if time_us is None:
        return None
    seconds, micros = divmod(time_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros).isoformat().replace("+00:00", "Z")
