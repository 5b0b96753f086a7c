"""`cdc move`: a store in another folder and on another machine, a SIGKILL before each operation, and two owners."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.base.errors import DamagedError
from cdc.cli.main import main
from cdc.config import load
from cdc.disk.durable import locked
from cdc.meta.file import FileMeta
from cdc.store.formats import layout
from cdc.store.formats.state import StoreLock
from cdc.store.reader.reader import StoreReader
from tests.support.removals import Place, run_command
from tests.support.unit_store import all_seqs, content

MACHINE = {"lock", "archive.lock", "retention.lock", "moved.json", "moving.json"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = Place(tmp_path_factory.mktemp("template"))
    place.fill(place.configure(), transactions=12)
    return place.folder


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Place:
    return copy(template, tmp_path / "here")


def copy(template: Path, folder: Path) -> Place:
    shutil.copytree(template, folder)
    return Place(folder)


def move(place: Place, *arguments: str | Path) -> int:
    return main(["--conf-dir", str(place.conf), "move", "shop", *map(str, arguments)])


def store_of(place: Place) -> Path:
    return load(place.conf / "shop.yaml").store.path


def files(store: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(store).items() if name not in MACHINE}


def is_usable(store: Path) -> bool:
    if not layout.exists(store):
        return False
    try:
        layout.check(store)
    except DamagedError:
        return False
    return True


def other_machine(template: Path, folder: Path) -> Place:
    """Returns a machine that has the configuration alone."""
    place = Place(folder)
    place.conf.mkdir(parents=True)
    shutil.copy(template / "conf" / "shop.yaml", place.conf)
    return place


def through(other: Place, before: str = "") -> str:
    """A command that reaches another machine, as ssh does."""
    line = f'cd {shlex.quote(str(other.folder))}; {before} exec {sys.executable} -m cdc --conf-dir {other.conf} "$@"'
    return shlex.join(["sh", "-c", line, "remote"])


def test_a_store_goes_to_another_folder(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = store_of(place), place.folder / "large" / "store"
    before, last = files(old), all_seqs(old)[-1]
    assert move(place, new) == 0
    said = capsys.readouterr().out
    assert files(new) == before == files(old)
    assert f"store.path: {new}" in said and f"seq {last}" in said and "binlog.000001:" in said
    for command in (["status"], ["batch", "get"], ["maintain"]):  # a forgotten process
        assert main(["--conf-dir", str(place.conf), *command, "shop"]) == 2
    with pytest.raises(DamagedError, match=f"was moved to {new} on "):
        layout.create(old, "shop")
    place.configure(store={"path": str(new)})
    assert main(["--conf-dir", str(place.conf), "status", "shop"]) == 0
    assert StoreReader(new).last_seq() == last
    assert move(place, old) == 2  # a store that was moved away is not empty


def test_the_archive_is_the_new_stores(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """An upload that somebody has forgotten does not take the archive from the new store."""
    archive = {"archive": f"file://{place.folder}/archive"}
    place.configure(store=archive)
    assert main(["--conf-dir", str(place.conf), "archive", "upload", "shop"]) == 0
    assert move(place, place.folder / "new") == 0
    for command in ("upload", "claim"):
        assert main(["--conf-dir", str(place.conf), "archive", command, "shop"]) == 2
        assert "was moved to" in capsys.readouterr().err
    place.configure(store={**archive, "path": str(place.folder / "new")})
    assert main(["--conf-dir", str(place.conf), "archive", "upload", "shop"]) == 0


def test_the_meta_goes_with_it(place: Place) -> None:
    config = load(place.conf / "shop.yaml")
    state = FileMeta(config.meta.path, "shop").read()
    assert move(place, place.folder / "s", "--meta", place.folder / "m") == 0
    assert FileMeta(place.folder / "m", "shop").read() == state


def test_a_store_goes_to_another_machine(
    template: Path, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_machine(template, tmp_path / "there")
    old, new = store_of(place), store_of(other)
    before = files(old)
    assert move(place, "--through", through(other, "echo Welcome;"), "--json") == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["transactions"] == 12 and document["last_seq"] == all_seqs(old)[-1]
    assert files(new) == before
    assert not is_usable(old) and is_usable(new)
    meta = load(other.conf / "shop.yaml").meta.path
    assert sorted(FileMeta(meta, "shop").subscriptions()) == ["apply", "audit"]
    # Another move says that it is done, and no third place gets the store.
    assert move(place, "--through", through(other)) == 0
    third = other_machine(template, tmp_path / "third")
    assert move(place, "--through", through(third)) == 2
    assert "there can be one only" in capsys.readouterr().err
    assert not layout.exists(store_of(third))
    assert main(["--conf-dir", str(place.conf), "remove", "shop", "--yes"]) == 2
    assert "was moved away" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no-such-program", "cannot be run"),
        ("sh -c 'echo hello; exit 3' x", "the other side has ended (exit code 3)"),
        ("sh -c 'yes' x", "does not answer as `cdc move --receive`"),
    ],
)
def test_a_command_that_is_no_receiver(
    place: Place, command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert move(place, "--through", command) in (1, 2)
    assert said in capsys.readouterr().err
    assert is_usable(store_of(place))


def test_what_prevents_a_move(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load(place.conf / "shop.yaml")
    store, new = config.store.path, place.folder / "new"
    lock = StoreLock(store)
    assert move(place, new) == 1
    lock.release()
    with locked(config.meta.path / "server.lock", "x"):
        assert move(place, new) == 1
    for folder in (store, store / "below", store.parent, place.folder / "lake", config.meta.path / "x"):
        assert move(place, folder) == 2, folder
    new.mkdir()
    (new / "precious").write_text("mine")
    assert move(place, new) == 2
    assert "this folder is not empty (precious)" in capsys.readouterr().err
    assert move(place) == 2
    assert move(place, new, "--through", "ssh x cdc") == 2
    assert is_usable(store)
    hidden = store.rename(tmp_path / "unmounted")
    store.mkdir()
    assert move(place, place.folder / "n") == 2
    assert "is its disk mounted?" in capsys.readouterr().err
    store.rmdir()
    hidden.rename(store)
    assert move(place, place.folder / "n") == 0


def test_a_copy_that_differs_is_not_used(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that returns other bytes than were written."""
    from cdc.lifecycle.move import receiver

    real = receiver.Receiver.prove

    def prove(self: receiver.Receiver, base_name: str) -> receiver.Proof:
        path = place.folder / "new" / "tables.json"
        path.write_bytes(path.read_bytes() + b" ")
        return real(self, base_name)

    monkeypatch.setattr(receiver.Receiver, "prove", prove)
    assert move(place, place.folder / "new") == 2
    assert is_usable(store_of(place)) and not is_usable(place.folder / "new")
    monkeypatch.undo()
    assert move(place, place.folder / "new") == 0
    assert is_usable(place.folder / "new")


@pytest.mark.parametrize("step", [19, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("machines", [1, 2])
def test_a_kill_at_each_operation_leaves_one_owner_at_most(
    template: Path, tmp_path: Path, machines: int, step: int, seed: int
) -> None:
    """SIGKILL of the process that moves, before each one of ``step`` operations; the same command finishes. Two stores
    are never usable together."""
    number = seed % step
    while True:
        place = copy(template, tmp_path / f"here{number}")
        other = other_machine(template, tmp_path / f"there{number}")
        old, new = store_of(place), store_of(other) if machines == 2 else place.folder / "new"
        before = files(old)
        target = ["--through", through(other)] if machines == 2 else [str(new)]
        arguments = ["--conf-dir", str(place.conf), "move", "shop", *target]
        code = run_command(arguments, kill_at=number)
        assert code in (0, -9)
        assert not (is_usable(old) and is_usable(new)), number
        if code == -9:
            assert is_usable(old) or (old / layout.MOVED_FILE).exists()
            assert run_command(arguments) == 0, number
        assert files(new) == before
        assert is_usable(new) and not is_usable(old), number
        for folder in (place.folder, other.folder):
            shutil.rmtree(folder)
        if code == 0:
            break
        number += machines * step  # a receiver takes seconds to start
    assert number > 15


@pytest.mark.long
def test_a_receiver_that_is_killed_is_made_up_for(template: Path, place: Place, tmp_path: Path) -> None:
    other = other_machine(template, tmp_path / "there")
    old, new = store_of(place), store_of(other)
    before, killed = files(old), 0
    for tenths in (*range(5, 60, 5), 600):
        limit = f"timeout -s KILL {tenths / 10}"
        code = move(place, "--through", through(other).replace("exec ", f"exec {limit} "))
        assert code in (0, 1)
        assert not (is_usable(old) and is_usable(new))
        if code == 0:
            break
        killed += 1
        assert is_usable(old) or (old / layout.MOVED_FILE).exists()
    assert killed and files(new) == before
    assert is_usable(new) and not is_usable(old)


def test_a_copy_follows_a_store_that_went_on(template: Path, place: Place) -> None:
    """The move was cut off, capture went on, and retention removed: the next move copies what differs."""
    new = place.folder / "new"
    arguments = ["--conf-dir", str(place.conf), "move", "shop", str(new)]
    number = 8
    assert run_command(arguments, kill_at=number) == -9
    store = store_of(place)
    assert is_usable(store) and (new / layout.MOVING_FILE).exists()
    assert main(["--conf-dir", str(place.conf), "batch", "get", "shop"]) == 0
    assert move(place, new) == 1  # a batch is outstanding
    meta = load(place.conf / "shop.yaml").meta.path
    with FileMeta(meta, "shop").change() as state:
        state.subscription("apply").remove_from(1)
    (store / "schemas" / "9.json").write_text('{"version": 1, "tables": {}}')
    (store / "schemas" / "4.json").unlink()
    assert move(place, new) == 0
    assert files(new) == files(store)


def test_configurations_of_both_machines_are_compared(
    template: Path, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = other_machine(template, tmp_path / "there")
    document = yaml.safe_load((other.conf / "shop.yaml").read_text())
    document["meta"] |= {"kind": "zookeeper", "hosts": "127.0.0.1:1"}
    (other.conf / "shop.yaml").write_text(yaml.safe_dump(document))
    assert move(place, "--through", through(other)) == 2
    assert "meta.kind is zookeeper in the configuration there, and file here" in capsys.readouterr().err
    assert is_usable(store_of(place))
