"""A watched file: what counts as another content, and when."""

from __future__ import annotations

import os
from pathlib import Path

from cdc.config.watch import WatchedFile


def test_a_content_counts_at_the_second_look(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("one")
    file = WatchedFile(path)
    assert not file.look()
    path.write_text("two")
    assert not file.look()
    path.write_text("two and a half")
    assert not file.look()
    assert file.look()
    assert not file.look()


def test_the_same_time_size_and_inode_hide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("one")
    os.utime(path, ns=(1, 1))
    file = WatchedFile(path)
    path.write_text("two")
    os.utime(path, ns=(1, 1))
    assert [file.look(), file.look()] == [False, True]


def test_a_swapped_link_is_noticed(tmp_path: Path) -> None:
    """Kubernetes mounts a file in this way: it is a link through a link, and the latter is replaced."""
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.yaml").write_text(name)
    (tmp_path / "data").symlink_to("v1")
    (tmp_path / "a.yaml").symlink_to("data/a.yaml")
    file = WatchedFile(tmp_path / "a.yaml")
    (tmp_path / "new").symlink_to("v2")
    (tmp_path / "new").replace(tmp_path / "data")
    assert [file.look(), file.look()] == [False, True]


def test_a_file_that_is_gone_for_a_moment_has_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("one")
    file = WatchedFile(path)
    path.unlink()
    assert not file.look()
    path.write_text("one")
    assert [file.look(), file.look()] == [False, False]
    path.unlink()
    assert [file.look(), file.look(), file.is_there] == [False, True, False]


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    os.mkfifo(path)
    assert not WatchedFile(path).is_there
