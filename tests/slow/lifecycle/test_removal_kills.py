"""SIGKILL of `cdc remove` before each change of a name in the file system: the next one finishes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cdc.base.errors import DamagedError
from cdc.base.targets import DESTINATION_PROPERTY
from cdc.cli.main import main
from cdc.store.formats import layout
from tests.support.removals import Place, run_command
from tests.support.unit_store import content

OWN = {DESTINATION_PROPERTY: "shop"}
FOREIGN = {DESTINATION_PROPERTY: "bank"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A machine with two destinations, of which one is removed in copies of it."""
    place = Place(tmp_path_factory.mktemp("template"))
    for name in ("shop", "bank"):
        place.fill(place.configure(name), transactions=12)
    place.table("shop.orders", OWN)
    place.table("shop.bank", FOREIGN)
    return place.folder


def copy(template: Path, folder: Path) -> Place:
    shutil.copytree(template, folder)
    return Place(folder)


def remove(place: Place, *arguments: str, kill_at: int | None = None) -> int:
    return run_command(["--conf-dir", str(place.conf), "remove", "shop", "--yes", *arguments], kill_at=kill_at)


def require_removed(place: Place, bank: dict[str, bytes]) -> None:
    assert not (place.folder / "data" / "shop" / "store").exists()
    assert not (place.folder / "data" / "shop" / "meta").exists()
    assert sorted(path.name for path in place.conf.iterdir()) == ["bank.yaml", "shop.yaml.removed"]
    assert content(place.folder / "data" / "bank") == bank


@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_at_each_operation_is_made_up_for(template: Path, tmp_path: Path, seed: int, step: int) -> None:
    """``step``: each one of so many operations."""
    bank = content(template / "data" / "bank")
    killed = seed % step
    while True:
        place = copy(template, tmp_path / str(killed))
        code = remove(place, "--lake", kill_at=killed)
        assert code in (0, -9)
        if code == -9:
            # As soon as the store is out of use, the removal knows what was asked for.
            is_known = (place.folder / "data" / "shop" / "store" / layout.REMOVING_FILE).exists()
            has_table = (place.folder / "lake" / "shop" / "orders").exists()
            is_removed = (place.conf / "shop.yaml.removed").exists()
            exit_code = remove(place, *(() if is_known or not has_table else ("--lake",)))
            assert exit_code == (2 if is_removed else 0), f"after a kill at operation {killed}"
        require_removed(place, bank)
        assert sorted(path.name for path in (place.folder / "lake" / "shop").iterdir()) == ["bank"]
        shutil.rmtree(place.folder)
        if code == 0:
            break
        killed += step
    assert killed > 20


def test_a_store_that_is_removed_is_out_of_use(template: Path, tmp_path: Path) -> None:
    place = copy(template, tmp_path / "place")
    store = place.folder / "data" / "shop" / "store"
    number = 0
    while not (store / layout.REMOVING_FILE).exists():
        number += 1
        assert remove(place, kill_at=number) == -9
    with pytest.raises(DamagedError, match="is being removed"):
        layout.create(store, "shop")
    aside, file = place.conf / "shop.yaml.removing", place.conf / "shop.yaml"
    file.write_text(aside.read_text())  # git-sync has put it back
    for command in (["status"], ["batch", "get"], ["maintain"], ["archive", "upload"]):
        assert main(["--conf-dir", str(place.conf), *command, "shop"]) == 2
    assert remove(place) == 2
    file.unlink()
    assert remove(place) == 0
    require_removed(place, content(template / "data" / "bank"))


@pytest.mark.long
def test_a_table_that_another_made_in_its_place_stays(template: Path, tmp_path: Path) -> None:
    """The removal was cut off after the table was gone, and somebody has made another one there."""
    place = copy(template, tmp_path / "place")
    table = place.folder / "lake" / "shop" / "orders"
    number = 0
    while table.exists():
        number += 1
        assert remove(place, "--lake", kill_at=number) == -9
    place.table("shop.orders", FOREIGN, delta_id="another")
    assert remove(place) == 0
    require_removed(place, content(template / "data" / "bank"))
    assert (table / "part-0.parquet").exists()
