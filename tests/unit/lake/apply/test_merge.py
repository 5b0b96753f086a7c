"""The hook before a statement, as tests use it."""

from __future__ import annotations

from pathlib import Path

from tests.support.pause import pause


def test_a_pause_ends_when_it_is_let_on(tmp_path: Path) -> None:
    (tmp_path / "p.go").touch()
    pause(tmp_path / "p", "shop.t")
    assert (tmp_path / "p.here").read_text().split() == ["shop.t"]
