"""Finding, reading and resolving a configuration file.

Relative paths are taken from the folder as it is named, so that a sync that swaps a checkout does not move the store.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cdc.base.errors import ConfigError
from cdc.config import DestinationConfig, as_named, conf_dir, find, load, load_destination, parse
from cdc.config.loading import server_ids
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.reader.reader import StoreReader
from cdc.testing.transactions import make_transactions
from tests.support.configurations import FILE, document, message, release


def swap(link: Path, to: Path) -> None:
    """Moves a link as git-sync does: a new one in one step over the old one."""
    fresh = link.with_name(link.name + ".new")
    fresh.symlink_to(to)
    fresh.replace(link)


def test_the_store_stays_when_the_link_to_conf_is_swapped(tmp_path: Path) -> None:
    link = tmp_path / "conf"
    swap(link, release(tmp_path, "a") / "conf")
    before = load(link / "shop.yaml")
    assert load(str(link / "shop.yaml")) == before, "programs name a file as a text"
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "holds no sections. Write it with `cdc init`."),
        ("- a", "holds no sections"),
        ("a: [", "1: is not valid YAML: expected the node content"),
        ("source:\n  url: x\n  url: y", "3: is not valid YAML: duplicate key 'url'"),
    ],
)
def test_text_that_is_no_configuration(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, FILE)
    assert str(caught.value).startswith(str(FILE))
    assert expected in str(caught.value)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", "s3a://bucket")
    monkeypatch.setenv("ID", "77")
    config = parse(document(apply__target="${LAKE}/raw", source__server_id="${ID}"), FILE)
    assert config.apply.target == "s3a://bucket/raw"
    assert config.source.server_id == 77


def test_environment_variable_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKE", raising=False)
    assert message(apply__target="${LAKE}/raw") == (
        "apply.target: the environment variable LAKE is not set. Set LAKE, or write the value itself."
    )


def test_finding_the_file(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    with pytest.raises(ConfigError, match=r"this folder does not exist\. Write a configuration with `cdc init`"):
        find(conf, None)
    conf.mkdir()
    with pytest.raises(ConfigError, match="this folder holds no configuration file"):
        find(conf, None)
    (conf / "shop.yaml").write_text(document())
    assert find(conf, None) == conf / "shop.yaml"
    with pytest.raises(ConfigError, match=r"no destination is called 'crm' \(crm\.yaml\)\. Choose from: shop\."):
        find(conf, "crm")
    (conf / "crm.yaml").write_text(document())
    with pytest.raises(ConfigError, match=r"several destinations: crm, shop\. Name one of them\."):
        find(conf, None)
    config = load_destination(conf, "crm")
    assert isinstance(config, DestinationConfig)
    assert config.store.path == tmp_path / "data/shop/store"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match="cannot be read: it is not UTF-8 text"):
        load(tmp_path / "shop.yaml")
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        load(tmp_path / "none.yaml")


def test_server_ids_of_all_files(tmp_path: Path) -> None:
    assert server_ids(tmp_path / "none") == set()
    (tmp_path / "a.yaml").write_text(document(source__server_id=5))
    (tmp_path / "b.yaml").write_text("source:\n  server_id:  6   # a comment\n  broken: [\n")
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "d.txt").write_text("server_id: 7\n")
    assert server_ids(tmp_path) == {5, 6}


def test_the_folder_of_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDC_CONF", raising=False)
    assert conf_dir() == Path("conf")
    monkeypatch.setenv("CDC_CONF", "/etc/towpath")
    assert conf_dir() == Path("/etc/towpath")
    assert conf_dir(Path("here")) == Path("here")
