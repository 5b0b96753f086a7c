"""The contract of metas for the file."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from cdc.meta.file import FileMeta
from cdc.testing.meta_contract import MakeMeta, SharedMetaContract


class TestFile(SharedMetaContract):
    @pytest.fixture
    def make_meta(self, tmp_path: Path) -> MakeMeta:
        return functools.partial(FileMeta, tmp_path / "meta", "shop")
