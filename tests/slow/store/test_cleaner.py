"""A process that is killed between any two steps of a removal."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.base.errors import CutOffError
from cdc.store.formats.layout import schemas_folder
from cdc.store.formats.missing import read_removed
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import remove_until
from cdc.testing.stores import Filler
from tests.support.unit_retention import files, fill, last_seqs, names
from tests.support.unit_store import all_seqs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of about eight segments; each test copies it."""
    path = tmp_path_factory.mktemp("retention") / "store"
    fill(path, 100)
    assert len(names(path)) >= 6
    return path


KILLER = """
import os, signal, sys
from pathlib import Path
from cdc.disk import files
from cdc.store.retention.cleaner import remove_until

class Killing(files.Files):
    left = int(sys.argv[2])
    def _step(self):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
    def unlink(self, path):
        self._step(); super().unlink(path)
    def replace(self, source, target):
        self._step(); super().replace(source, target)
    def sync_folder(self, folder):
        self._step(); super().sync_folder(folder)

with files.use(Killing()):
    remove_until(Path(sys.argv[1]), int(sys.argv[3]))
"""


def test_killed_between_any_two_steps_of_a_removal(made: Path, tmp_path: Path) -> None:
    """A real process is killed before each of its steps. Readers get everything that is left or an error that names the
    gap, and the next run finishes the removal."""
    import shutil

    seqs, ends = all_seqs(made), last_seqs(made)
    expected = [seq for seq in seqs if seq > ends[1]]
    step, marked = 0, False
    while True:
        store = tmp_path / f"store{step}"
        shutil.copytree(made, store)
        for seq in (seqs[0], seqs[1]):
            (schemas_folder(store) / f"{seq}.json").write_text("{}")
        done = subprocess.run([sys.executable, "-c", KILLER, str(store), str(step), str(ends[1])])
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        mark = read_removed(store).seq
        assert mark in (0, ends[1]) and (mark or not marked), "the mark comes first, and stays"
        marked = mark > 0
        reader = StoreReader(store)
        if marked:
            with pytest.raises(CutOffError):
                reader.select(0, Limits())
            assert reader.first_seq() == expected[0]
            assert reader.totals().transactions == reader.backlog(ends[1]).transactions == len(expected)
        else:
            assert reader.totals().transactions == len(seqs)
        selection = reader.select(ends[1], Limits())
        assert selection is not None and selection.transactions == len(expected)
        Filler(store).close()  # a writer ends what was begun
        remove_until(store, ends[1])
        assert all_seqs(store) == expected
        assert files(store) == {name + end for name in names(made)[2:] for end in ("", ".index")}
        assert [int(p.stem) for p in schemas_folder(store).iterdir()] == [seqs[1]]
        step += 1
    assert step >= 8
