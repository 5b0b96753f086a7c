from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.config import DestinationConfig, load
from cdc.disk import files
from cdc.testing.faults import UnflushedFiles
from cdc.testing.source import FakeSource
from tests.slow.capture.support import Configure


@pytest.fixture(autouse=True)
def _unflushed() -> Iterator[None]:
    with files.use(UnflushedFiles()):
        yield


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Returns a function that configures a destination for a fake source, without its tables ``noise``. Keyword
    arguments are further keys of the section ``source``."""

    def make(source: FakeSource, folder: Path = tmp_path, **keys: object) -> DestinationConfig:
        (folder / "conf").mkdir(parents=True, exist_ok=True)
        file = folder / "conf" / "shop.yaml"
        given = {"server_id": 77, "start": "earliest", "heartbeat_s": 0.2, **keys}
        lines = ", ".join(f"{key}: {value}" for key, value in given.items())
        file.write_text(
            f"source: {{url: '{source.url}', {lines}}}\n"
            "tables: {include: ['shop\\..*'], exclude: ['shop\\.noise']}\n"
            f"store: {{path: {folder}/store}}\nmeta: {{path: {folder}/meta}}\napply: {{target: {folder}/lake}}\n"
        )
        return load(file)

    return make


@pytest.fixture
def config(source: FakeSource, configure: Configure) -> Iterator[DestinationConfig]:
    """Configures a destination for the module's fixture ``source``, on a RAM disk if there is one: such tests make
    thousands of small stores."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        yield configure(source, Path(folder))
