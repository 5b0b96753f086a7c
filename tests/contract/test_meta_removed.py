"""A durable meta is removed: nothing of it is left, what others have beside it is, and held locks are named."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.base.errors import IdentityError
from cdc.meta import State
from cdc.meta.base import DurableMeta
from cdc.meta.file import FileMeta
from cdc.testing.meta_contract import IDENTITY, add_batch, entry
from cdc.testing.servers import Server
from tests.contract.meta_support import base, client, maker

Make = Callable[[], DurableMeta]


@pytest.fixture(params=["file", "zookeeper"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "file":
        return functools.partial(FileMeta, tmp_path / "meta", "shop")
    return maker(request.getfixturevalue("zookeeper"))


def fill(meta: DurableMeta) -> None:
    meta.bind_source(IDENTITY)
    for name in ("apply", "canal-1001"):
        meta.subscribe(name, "shop.*")
        add_batch(meta, name, entry(1, 0, 5))
    with meta.lock("job-shop.orders", "a job"):
        pass


def test_nothing_is_left(make: Make) -> None:
    with make() as meta:
        assert meta.remove() == []  # nothing is stored yet
        fill(meta)
        assert meta.remove() == []
        assert meta.remove() == []
        assert meta.read() == State(destination="shop")
        fill(meta)  # and it can be used again
        assert sorted(meta.subscriptions()) == ["apply", "canal-1001"]


def test_held_locks_are_named(make: Make) -> None:
    with make() as meta, make() as other:
        assert meta.held_locks() == []
        fill(meta)
        assert meta.held_locks() == []
        with other.lock("job-shop.orders", "a job"), other.lock("commit-shop.items", "a commit", shared=True):
            assert meta.held_locks() == ["commit-shop.items", "job-shop.orders"]
        assert meta.held_locks() == []


def test_a_file_of_another_destination_stays(tmp_path: Path) -> None:
    fill(FileMeta(tmp_path, "shop"))
    with pytest.raises(IdentityError):
        FileMeta(tmp_path, "bank").remove()
    assert len(FileMeta(tmp_path, "shop").subscriptions()) == 2


def test_nodes_of_others_stay(zookeeper: Server) -> None:
    """Canal's clients have nodes in the same tree; another destination has a node of its own."""
    make = maker(zookeeper)
    with make() as meta, client(zookeeper) as kazoo:
        fill(meta)
        kazoo.create(f"{base(make)}/1001/running", b"theirs")
        kazoo.create(f"{base(make)}/1002/cursor", b"theirs", makepath=True)
        kazoo.create(f"{base(make)}/cluster", b"")
        kazoo.create(f"{base(make)}2/towpath", b"another destination", makepath=True)
        kept = meta.remove()
        assert [place.rpartition("/")[2] for place in kept] == ["1001", "1002"]
        assert kazoo.get(f"{base(make)}/1001/running")[0] == b"theirs"
        assert kazoo.get_children(f"{base(make)}/1001") == ["running"]
        assert kazoo.exists(f"{base(make)}/towpath") is None
        assert kazoo.get(f"{base(make)}2/towpath")[0] == b"another destination"
