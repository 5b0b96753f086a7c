"""Relative paths count from the folder as it was named: a checkout that a sync swaps does not move the store."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from cdc.commands import check_local
from cdc.config import as_named, load
from cdc.errors import ConfigError
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.reader.reader import StoreReader
from cdc.testing.transactions import make_transactions

TEXT = """\
source: {url: 'mysql://cdc@db.example:3306', server_id: 52017, password_file: shop.password, ssl_ca: ca.pem}
tables: {include: ['shop\\..*']}
store: {path: STORE/store}
meta: {path: STORE/meta}
apply: {target: STORE/lake}
"""


def release(folder: Path, name: str, store: str = "./data") -> Path:
    """A checkout with its own copy of the configuration."""
    made = folder / "releases" / name
    (made / "conf").mkdir(parents=True)
    (made / "conf" / "shop.yaml").write_text(TEXT.replace("STORE", store))
    return made


def swap(link: Path, to: Path) -> None:
    """Moves a link as git-sync does: a new one in one step over the old one."""
    fresh = link.with_name(link.name + ".new")
    fresh.symlink_to(to)
    fresh.replace(link)


def test_the_store_stays_when_the_link_to_conf_is_swapped(tmp_path: Path) -> None:
    link = tmp_path / "conf"
    swap(link, release(tmp_path, "a") / "conf")
    before = load(link / "shop.yaml")
    with closing(TransactionLog(before.store.path, destination="shop", segment_bytes=1 << 20)) as log:
        log.put(make_transactions(3))
    swap(link, release(tmp_path, "b") / "conf")
    after = load(link / "shop.yaml")
    assert StoreReader(after.store.path).totals().transactions == 3
    assert after.store.path == tmp_path / "data" / "store"
    assert (after.meta, after.apply.target, after.file) == (before.meta, before.apply.target, before.file)
    assert after.source.password_file == link / "shop.password"
    assert after.source.ssl_ca == link / "ca.pem"


def test_a_command_in_a_folder_that_is_swapped(tmp_path: Path) -> None:
    """The shell entered the folder by its link, and a relative --conf-dir counts from there."""
    link = tmp_path / "current"
    program = "import sys; from cdc.config import load_destination, conf_dir; print(load_destination(conf_dir(), None).store.path)"
    seen = []
    for name in ("a", "b"):
        swap(link, release(tmp_path, name, "../data"))
        environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
        command = f'cd "{link}" && exec "{sys.executable}" -c "{program}"'
        done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True)
        seen.append(done.stdout.strip())
    assert seen == [str(tmp_path / "data" / "store")] * 2


def test_names_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/sub")
    monkeypatch.chdir(tmp_path / "link")
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    assert as_named(Path("x/./y/../z")) == tmp_path / "link" / "x" / "z"
    assert as_named(Path()) == tmp_path / "link"
    for stale in (str(tmp_path), str(tmp_path / "gone"), "link", str(tmp_path / "link" / "..")):
        monkeypatch.setenv("PWD", stale)  # another process's, or no name of this folder
        assert as_named(Path("x")) == tmp_path / "real" / "sub" / "x"
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    assert as_named(Path("/a/../b")) == Path("/b")
    with pytest.raises(ConfigError, match=r"goes up from a symbolic link.*Name it without"):
        as_named(Path(".."))  # the system means real/, and a reader means the folder of the link


def test_check_warns_of_a_store_that_others_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = check_local._fleeting("store", tmp_path / "data" / "store", "store.path")
    assert [f.level for f in found] == ["warning"], "tests lie in a temporary folder"
    assert "temporary folder" in found[0].message
    monkeypatch.setattr(check_local, "_TEMPORARY", ())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    assert check_local._fleeting("store", tmp_path / "data" / "store", "store.path") == []
    worktree = release(tmp_path, "a")
    (worktree / ".git").write_text("gitdir: /elsewhere\n")
    (tmp_path / "current").symlink_to(worktree)
    for path in (worktree / "data" / "store", tmp_path / "current" / "data" / "store"):
        (warning,) = check_local._fleeting("meta", path, "meta.path")
        assert f"{path} lies inside the git checkout " in warning.message
        assert "meta.path" in (warning.remedy or "")
    assert "by a symbolic link" in warning.message
    (tmp_path / "conf").symlink_to(worktree / "conf")
    config = load(tmp_path / "conf" / "shop.yaml")
    assert check_local._fleeting("store", config.store.path, "store.path") == [], "it stays outside"


def test_check_says_so(tmp_path: Path) -> None:
    """The warnings are among what `cdc check` examines."""
    config = load(release(tmp_path, "a") / "conf" / "shop.yaml")
    warnings = [f for f in check_local.examine(config) if f.level == "warning" and "temporary folder" in f.message]
    assert [f.subject for f in warnings] == ["store", "meta"]
