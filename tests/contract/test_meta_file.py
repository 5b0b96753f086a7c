"""The contract of metas for the file: stored at once, and stored periodically."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from cdc.event_store.periodic_meta import PeriodicMeta
from cdc.meta import Meta
from cdc.meta.file import FileMeta
from cdc.testing.meta_contract import MakeMeta, MetaContract, SharedMetaContract


class TestFile(SharedMetaContract):
    @pytest.fixture
    def make_meta(self, tmp_path: Path) -> MakeMeta:
        return functools.partial(FileMeta, tmp_path / "meta", "shop")


class TestFilePeriodic(MetaContract):
    @pytest.fixture
    def make_meta(self, tmp_path: Path) -> MakeMeta:
        def make(*, lock_wait_s: float = 30.0) -> Meta:
            return PeriodicMeta(FileMeta(tmp_path / "meta", "shop"), period_s=0.02, lock_wait_s=lock_wait_s)

        return make
