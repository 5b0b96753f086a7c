"""The share of the server's retention that is left for what is unread."""

from __future__ import annotations

import pytest

from cdc.source.purge import PurgeMargin


@pytest.mark.parametrize(
    ("margin", "left"),
    [
        (PurgeMargin("b.3", 10), 1.0),  # the newest file, or nothing is ever purged
        (PurgeMargin("b.3", 10, purge_at_s=1500, now_s=1000, retention_s=1000), 0.5),
        (PurgeMargin("b.3", 10, purge_at_s=900, now_s=1000, retention_s=1000), 0.0),
        (PurgeMargin("b.3", 10, purge_at_s=1000, now_s=1000, retention_s=0), 0.0),  # no certain time
        (PurgeMargin("b.3", 10, room_bytes=30, total_bytes=100), 0.3),
        (PurgeMargin("b.3", 10, room_bytes=-5, total_bytes=100), 0.0),
        (PurgeMargin("b.3", 10, 1900, 1000, 1000, room_bytes=30, total_bytes=100), 0.3),
    ],
)
def test_the_nearer_limit_counts(margin: PurgeMargin, left: float) -> None:
    assert margin.left == pytest.approx(left)


def test_a_margin_says_what_is_near() -> None:
    assert str(PurgeMargin("b.000003", 2048)) == "2.0 KiB of the binlog are unread, from b.000003 on"
    by_both = PurgeMargin("b.000003", 2048, 4600, 1000, 86400, room_bytes=-1, total_bytes=1024)
    assert str(by_both) == (
        "2.0 KiB of the binlog are unread, from b.000003 on; the server may purge that file in 1 h (it keeps files for "
        "1 d); it purges that file after 0 B more (it keeps 1.0 KiB)"
    )
    assert "may purge that file now" in str(PurgeMargin("b.000003", 1, 900, 1000, 86400))
