"""Preparing a batch reads only the transactions that concern its tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cdc.base.errors import CdcError
from cdc.batches.manifest import ByteRange, Manifest
from cdc.config import DestinationConfig
from cdc.lake.apply.prepare import PreparedBatch, prepare
from cdc.meta.state import Subscription
from cdc.store.formats.index import read_entries
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.pipeline import sample_manifest
from tests.unit.lake.rows.test_input_splits import filled

ORDERS, ITEMS = "shop.orders", "shop.items"


def config_of(folder: Path, include: str) -> DestinationConfig:
    return DestinationConfig.model_validate(
        {
            "source": {"url": "mysql://u@h:3306", "server_id": 7},
            "tables": {"include": [include]},
            "store": {"path": str(folder / "store")},
            "meta": {"path": str(folder / "meta")},
            "apply": {"target": str(folder / "lake"), "on_error": "block"},
        }
    )


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Two transactions of ``orders``, and between them a damaged one of ``items``."""
    log = BinlogBuilder()
    for n, table in enumerate(("orders", "items", "orders")):
        log.transaction("shop", table, [n])
    (byte_range,) = filled(tmp_path / "store", log)
    entries = read_entries(Path(byte_range.path))
    middle = entries[entries["length"] > 0][1]
    file = os.open(byte_range.path, os.O_RDWR)
    os.pwrite(file, b"\xff" * 200, int(middle["offset"]))
    os.close(file)
    return sample_manifest(1).model_copy(
        update={
            "tables": (ORDERS, ITEMS),
            "table_bits": {ORDERS: 0, ITEMS: 1},
            "ranges": (byte_range,),
            "after_seq": 0,
        }
    )


def prepared(manifest: Manifest, config: DestinationConfig) -> PreparedBatch:
    return prepare(manifest, config, lambda: None, Subscription())


def test_transactions_of_excluded_tables_are_not_read(manifest: Manifest, tmp_path: Path) -> None:
    with pytest.raises(CdcError):
        prepared(manifest, config_of(tmp_path, r"shop\..*"))
    batch = prepared(manifest, config_of(tmp_path, r"shop\.orders"))
    assert (batch.tables, list(batch.contents.layouts), batch.is_large(ORDERS)) == ((ORDERS,), [ORDERS], False)
    assert batch.changes(ORDERS) and not batch.changes(ITEMS)


def test_files_without_a_table_are_not_opened(manifest: Manifest, tmp_path: Path) -> None:
    missing = ByteRange(path=str(tmp_path / "missing.binlog"), offset=4, length=9, table_bits=(1,))
    batch = prepared(
        manifest.model_copy(update={"ranges": (*manifest.ranges, missing)}), config_of(tmp_path, r"shop\.orders")
    )
    assert list(batch.contents.layouts) == [ORDERS]
    assert prepared(manifest.model_copy(update={"ranges": (missing,)}), config_of(tmp_path, "other.*")).tables == ()


def test_without_bits_every_transaction_is_read(manifest: Manifest, tmp_path: Path) -> None:
    """Manifests of older versions do not have them."""
    with pytest.raises(CdcError):
        prepared(manifest.model_copy(update={"table_bits": None}), config_of(tmp_path, r"shop\.orders"))
