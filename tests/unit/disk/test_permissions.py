"""Rows and tokens are written for their own user, or for a group as well; never for all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cdc.batches.lease import exclusive
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig, load
from cdc.disk.permissions import READ, Permissions, secure_folder
from cdc.meta import open_meta
from cdc.store.formats.layout import create
from cdc.store.formats.state import CaptureState, write_capture_state
from cdc.store.formats.time_index import TimeIndexWriter
from cdc.store.writer.log import RelayLog
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from tests.support.unit_batches import IDENTITY, make_config


@pytest.fixture(params=[0o022, 0o077, 0o002], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Returns the modes of a folder and of everything in it, by the path in the folder."""
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}


def configured(folder: Path, permissions: Permissions) -> DestinationConfig:
    file = make_config(folder).file
    document = yaml.safe_load(file.read_text())
    document["store"] |= {"permissions": permissions, "stage": f"file://{folder}/stage"}
    document["meta"]["permissions"] = permissions
    file.write_text(yaml.safe_dump(document))
    return load(file)


def fill(config: DestinationConfig) -> None:
    """Everything that capture, get, ack and rollback write."""
    permissions = config.store.permissions
    RelayLog(config.store.path, destination="shop", segment_bytes=65536, permissions=permissions).close()
    TimeIndexWriter(config.store.path).close()
    state = CaptureState(1, True, "binlog.000001", 4, None, 0, 0)
    write_capture_state(config.store.path, state)
    log = BinlogBuilder()
    for n in range(40):
        log.transaction("shop", "orders", list(range(n * 30)))
    filler = Filler.__new__(Filler)
    filler.store = RelayLog(config.store.path, destination="shop", segment_bytes=65536, permissions=permissions)
    filler._segment_bytes, filler._framer = 65536, None
    filler.put(log)
    filler.close()
    open_meta(config).bind_source(IDENTITY)
    with exclusive(config):
        service = BatchService(config)
        first, second = service.get("a"), service.get("a", ahead=True)
        assert first is not None and second is not None
        service.ack(first.batch, first.token)


@pytest.mark.parametrize(
    ("permissions", "store_modes", "meta_modes"),
    [
        ("private", (0o700, 0o600), (0o700, 0o600)),
        ("group", (0o2750, 0o640), (0o2770, 0o660)),
    ],
)
def test_everything_is_closed_to_others(
    tmp_path: Path,
    umask: None,
    permissions: Permissions,
    store_modes: tuple[int, int],
    meta_modes: tuple[int, int],
) -> None:
    config = configured(tmp_path, permissions)
    fill(config)
    stage = tmp_path / "stage" / "shop"
    for folder, (of_folders, of_files) in (
        (config.store.path, store_modes),
        (config.meta.path, meta_modes),
        (stage, store_modes),
    ):
        mode_by_name = modes(folder)
        assert len(mode_by_name) > 4, folder
        for name, mode in mode_by_name.items():
            assert oct(mode) == oct(of_folders if (folder / name).is_dir() else of_files), folder / name


def test_a_store_of_an_older_version_is_closed_when_it_is_opened(tmp_path: Path) -> None:
    config = configured(tmp_path, "private")
    fill(config)
    for path in (config.store.path, *config.store.path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    create(config.store.path, "shop")
    assert {oct(mode) for mode in modes(config.store.path).values()} == {"0o700", "0o600"}
    create(config.store.path, "shop", "group")
    assert {oct(mode) for mode in modes(config.store.path).values()} == {"0o2750", "0o640"}
    RelayLog(config.store.path, destination="shop", segment_bytes=65536).close()
    assert {oct(mode) for mode in modes(config.store.path).values()} == {"0o2700", "0o600"}


def test_what_lies_above_and_what_links_point_to_stays_as_it_is(tmp_path: Path) -> None:
    before = os.umask(0o022)
    tmp_path.chmod(0o755)
    try:
        outside = tmp_path / "outside"
        outside.write_text("x")
        store = tmp_path / "data" / "shop" / "store"
        store.mkdir(parents=True)
        (store / "link").symlink_to(outside)
        secure_folder(store, "private", READ)
        secure_folder(tmp_path / "other" / "store", "private", READ)
    finally:
        os.umask(before)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "other").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "other" / "store").stat().st_mode) == 0o700
