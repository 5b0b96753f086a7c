"""`cdc remove`: what goes, what stays, and what prevents it. tests/slow/lifecycle has its kills."""

from __future__ import annotations

import functools
import json
import shutil
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cdc.base.targets import DESTINATION_PROPERTY, SHARED_PROPERTY
from cdc.batches.lease import exclusive
from cdc.cli.main import main
from cdc.copies.archive.writer import Archiver
from cdc.disk.durable import locked
from cdc.lifecycle.folders import META_NAMES, STORE_NAMES
from cdc.meta import Outstanding, open_meta
from cdc.meta.file import FileMeta
from cdc.store.formats.state import StoreLock
from cdc.store.reader.reader import StoreReader
from tests.support.removals import Place
from tests.support.unit_store import content

OWN = {DESTINATION_PROPERTY: "shop"}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A machine with the destination ``shop``, its store and its meta, and another destination."""
    place = Place(tmp_path)
    place.fill(place.configure())
    place.fill(place.configure("bank", apply={"target": "./bank"}))
    return place


def remove(place: Place, *arguments: str, name: str = "shop") -> int:
    return main(["--conf-dir", str(place.conf), "remove", name, *arguments])


def answer(place: Place, capsys: pytest.CaptureFixture[str], *arguments: str, name: str = "shop") -> dict[str, Any]:
    capsys.readouterr()
    remove(place, "--json", *arguments, name=name)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def require_removed(place: Place) -> None:
    """Store, meta and configuration of ``shop`` are gone, and those of ``bank`` are whole."""
    assert not (place.folder / "data" / "shop" / "store").exists()
    assert not (place.folder / "data" / "shop" / "meta").exists()
    assert sorted(path.name for path in place.conf.iterdir()) == ["bank.yaml", "shop.yaml.removed"]
    assert main(["--conf-dir", str(place.conf), "inspect", str(place.folder / "data" / "bank" / "store")]) == 0


def test_a_destination_is_removed_and_the_lake_stays(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    table = place.table("shop.orders", OWN)
    before = content(place.folder / "data" / "bank")
    assert remove(place, "--yes") == 0
    require_removed(place)
    assert content(place.folder / "data" / "bank") == before
    assert (table / "part-0.parquet").exists()
    said = capsys.readouterr().out
    assert "--lake removes it" in said and "airflow dags delete --yes apply_shop" in said
    assert remove(place, "--yes") == 2
    assert "shop is removed already" in capsys.readouterr().err
    (place.conf / "shop.yaml.removed").unlink()
    assert remove(place, "--yes") == 2
    assert "Only its file names the store" in capsys.readouterr().err


def test_without_yes_nothing_changes(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.table("shop.orders", OWN)
    before = content(place.folder)
    assert remove(place) == 0
    assert remove(place, "--dry-run", "--lake") == 0
    document = answer(place, capsys)
    assert content(place.folder) == before
    assert not document["removed"] and document["obstacles"] == []
    sizes = {part["kind"]: (part["files"], part["bytes"]) for part in document["parts"]}
    store = content(place.folder / "data" / "shop" / "store")
    assert sizes["store"] == (len(store), sum(map(len, store.values())))
    assert [part["detail"].partition(",")[0] for part in document["parts"] if part["kind"] == "subscription"] == [
        "apply",
        "audit",
    ]
    assert remove(place, "--yes", "--dry-run") == 0
    assert content(place.folder) == before


def say(typed: str, *_: object, **__: object) -> str:
    return typed


def test_a_terminal_asks_for_the_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for typed, code, exists in (("shpo", 0, True), ("shop", 0, False)):
        monkeypatch.setattr("typer.prompt", functools.partial(say, typed))
        assert remove(place) == code
        assert (place.conf / "shop.yaml").exists() is exists
    require_removed(place)


def test_tables_go_if_asked_and_only_own_ones(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    own = place.table("shop.orders", OWN)
    excluded = place.table("old.orders", OWN)  # one that the configuration has chosen once
    shared = place.table("shop.all", {SHARED_PROPERTY: "true", "towpath.member.shop.generation": "0"})
    foreign = place.table("shop.bank", {DESTINATION_PROPERTY: "bank"})
    theirs = place.table("shop.theirs", {})
    (place.folder / "lake" / "shop" / "notes").mkdir()
    (place.folder / "lake" / "shop" / "notes" / "a.txt").write_text("mine")
    assert remove(place, "--yes", "--lake") == 0
    require_removed(place)
    assert not own.exists() and not excluded.parent.exists()
    assert all(path.exists() for path in (shared, foreign, theirs, place.folder / "lake" / "shop" / "notes" / "a.txt"))
    assert "shared with no other destination yet" in capsys.readouterr().out


@pytest.fixture(params=["capture", "server", "command", "archive", "job", "holder"])
def held(request: pytest.FixtureRequest, place: Place) -> Iterator[str]:
    """Somebody who works on ``shop``; yields a word of the message."""
    from cdc.config import load

    config = load(place.conf / "shop.yaml")
    store, meta = config.store.path, config.meta.path
    match request.param:
        case "capture":
            lock = StoreLock(store)
            yield "another capture"
            lock.release()
        case "server":
            with locked(meta / "server.lock", "x"):
                yield "`cdc server`"
        case "command":
            with exclusive(config):
                yield "another `cdc` command"
        case "archive":
            with locked(store / "archive.lock", "x"):
                yield "an upload to the archive"
        case "job":
            with open_meta(config) as opened, opened.lock("job-shop.orders", "x"):
                yield "somebody works on a table"
        case "holder":
            with locked(meta / "holder.lock", "x"):
                yield "keeps the meta in memory"


def test_whoever_works_prevents_it(held: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(place.folder)
    assert remove(place, "--yes") == 1
    assert held in capsys.readouterr().err
    assert {name: data for name, data in content(place.folder).items() if not name.endswith("lock")} == {
        name: data for name, data in before.items() if not name.endswith("lock")
    }


def test_a_batch_prevents_it(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    hold_batch(place)
    assert remove(place, "--yes") == 1
    assert "batch 1 of apply is outstanding: airflow:apply_shop" in capsys.readouterr().err
    assert (place.conf / "shop.yaml").exists()


def hold_batch(place: Place) -> None:
    with FileMeta(place.folder / "data" / "shop" / "meta", "shop") as meta, meta.change() as state:
        batch = Outstanding(
            batch=1,
            first_seq=10**12,
            last_seq=10**12,
            after_seq=state.subscription("apply").acked_seq,
            owner="airflow:apply_shop",
            token="t",
            expires=datetime.now(UTC) + timedelta(hours=1),
        )
        state.subscription("apply").add(batch)


def test_a_batch_that_is_taken_meanwhile_prevents_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the locks: everything is put back."""
    from cdc.lifecycle.removal import configuration

    real = configuration.take_aside

    def take_aside(file: Path) -> None:
        real(file)
        hold_batch(place)

    monkeypatch.setattr(configuration, "take_aside", take_aside)
    assert remove(place, "--yes") == 1
    assert sorted(path.name for path in place.conf.iterdir()) == ["bank.yaml", "shop.yaml"]
    assert StoreReader(place.folder / "data" / "shop" / "store").last_seq()


def test_a_store_of_another_destination_stays(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.configure(store={"path": "./data/bank/store"})
    before = content(place.folder / "data")
    assert remove(place, "--yes") == 2
    err = capsys.readouterr().err
    assert "the store belongs to the destination 'bank'" in err
    assert "store.path of the destination bank is the same folder" in err
    assert content(place.folder / "data") == before


def test_folders_that_links_lead_to_are_compared(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    (place.folder / "link").symlink_to(place.folder / "data" / "shop")
    place.configure("third", store={"path": "./link/store"}, meta={"path": "./third"})
    assert remove(place, "--yes") == 2
    assert "store.path of the destination third is the same folder" in capsys.readouterr().err
    place.configure("third", store={"path": "./third/store"}, meta={"path": "./link/store/meta"})
    assert remove(place, "--yes") == 2
    assert "meta.path of the destination third lies in it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (("store",), "there is no store, and the meta knows one"),
        (("meta",), "there is no meta, and the store was captured with one"),
        (("store", "meta"), "there is neither a store nor a meta"),
    ],
)
def test_a_disk_that_is_not_mounted(
    place: Place, gone: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = place.folder / "data" / "shop"
    for name in gone:
        (data / name).rename(place.folder / name)
    assert remove(place, "--yes") == 2
    assert said in capsys.readouterr().err
    assert (place.conf / "shop.yaml").exists()
    assert remove(place, "--yes", "--incomplete") == 0
    require_removed(place)
    for name in gone:
        assert any((place.folder / name).iterdir())


def test_only_towpaths_files_are_removed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    store, meta = (place.folder / "data" / "shop" / name for name in ("store", "meta"))
    (store / "lost+found").mkdir()
    (meta / "notes.txt").write_text("mine")
    elsewhere = place.folder / "large"
    shutil.move(store / "segments", elsewhere)
    (store / "segments").symlink_to(elsewhere)
    assert remove(place, "--yes") == 0
    assert [path.name for path in store.iterdir()] == ["lost+found"]
    assert [path.name for path in meta.iterdir()] == ["notes.txt"]
    assert any(elsewhere.iterdir())
    assert "segments is a symbolic link" in capsys.readouterr().out


@pytest.mark.parametrize("names", [("segments", "snapshots", "lock"), ("removing.json.bak", "prepared")])
def test_a_folder_that_is_no_store_loses_nothing(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A wrong store.path or meta.path, like / or that of a program."""
    place = Place(tmp_path)
    place.configure(store={"path": "./other"}, meta={"path": "./etc"})
    for folder in ("other", "etc"):
        (tmp_path / folder).mkdir()
        for name in (*names, "locks", "manifests"):
            (tmp_path / folder / name).mkdir()
            (tmp_path / folder / name / "file").write_text("of somebody else")
    before = content(tmp_path)
    assert remove(place, "--yes") == 2
    assert content(tmp_path) == before
    assert remove(place, "--yes", "--incomplete") == 0
    del before["conf/shop.yaml"]
    after = content(tmp_path)
    del after["conf/shop.yaml.removed"]
    assert after == before


def test_a_folder_of_configurations_that_cannot_be_written(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    assert remove(place, "--yes") == 2
    assert "Take the file away where it is managed" in capsys.readouterr().err
    assert StoreReader(place.folder / "data" / "shop" / "store").last_seq()


def test_a_standby_removes_what_is_on_its_machine(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    config = place.configure(store={"standby": {"role": "standby", "master": "127.0.0.1:4100"}})
    shutil.rmtree(config.meta.path)
    table = place.table("shop.orders", OWN)
    assert remove(place, "--yes", "--lake") == 2
    assert remove(place, "--yes") == 0
    require_removed(place)
    assert table.exists()
    assert "it is the master's" in capsys.readouterr().out


def test_an_archive_goes_if_it_is_asked_for_and_this_stores(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    archive = place.folder / "archive"
    config = place.configure(store={"archive": f"file://{archive}"})
    Archiver(config).run(everything=True)
    (archive / "bank").mkdir()
    assert {part["kind"]: part["stays"] for part in answer(place, capsys)["parts"]}["archive"] == "--archive removes it"
    (record := config.store.path / "archive.json").rename(place.folder / "archive.json")
    parts = answer(place, capsys, "--archive")["parts"]  # that of another store
    assert "another store writes to this archive" in {part["kind"]: part["stays"] for part in parts}["archive"]
    (place.folder / "archive.json").rename(record)
    assert remove(place, "--yes", "--archive") == 0
    require_removed(place)
    assert [path.name for path in archive.iterdir()] == ["bank"]


def test_what_cannot_be_looked_at_stays(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """A lake and an archive that are away, of which nothing is to be removed."""
    place.configure(store={"archive": "s3://no-bucket/archive"}, s3={"endpoint": "http://127.0.0.1:1"})
    (place.folder / "lake" / "shop" / "orders" / "_delta_log").mkdir(parents=True)
    (place.folder / "lake" / "shop" / "orders" / "_delta_log" / f"{0:020d}.json").write_text("{")
    parts = {part["kind"]: part["stays"] for part in answer(place, capsys)["parts"]}
    assert "it cannot be looked at" in parts["archive"] and "they cannot be looked at" in parts["tables"]
    assert remove(place, "--yes", "--lake") == 1
    assert remove(place, "--yes", "--archive") == 1
    assert remove(place, "--yes") == 0
    require_removed(place)


class Gateway(BaseHTTPRequestHandler):
    """Answers as a Pushgateway that has the metrics, and keeps what it was asked."""

    asked: ClassVar[list[str]] = []

    def do_DELETE(self) -> None:
        self.asked.append(self.path)
        self.send_response(202)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def test_the_gateway_forgets_the_metrics(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), Gateway) as gateway:
        place.configure(metrics={"push": f"http://127.0.0.1:{gateway.server_port}"})
        threading.Thread(target=gateway.handle_request, daemon=True).start()
        assert remove(place, "--yes") == 0
    assert Gateway.asked == ["/metrics/job/towpath/destination/shop"]
    require_removed(place)


def test_a_gateway_that_is_away_is_asked_again(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.configure(metrics={"push": "http://127.0.0.1:1"})
    assert remove(place, "--yes") == 1
    assert "if the gateway is gone for good, remove metrics.push" in capsys.readouterr().err
    aside = place.conf / "shop.yaml.removing"
    aside.write_text(aside.read_text().replace("metrics:\n  push: http://127.0.0.1:1\n", ""))
    assert remove(place, "--yes") == 0
    require_removed(place)


def test_manifests_alone_are_a_meta(place: Place) -> None:
    """A meta in ZooKeeper leaves such a folder, if only DAGs have worked on this machine."""
    meta = place.folder / "data" / "shop" / "meta"
    shutil.rmtree(meta)
    (meta / "manifests" / "apply").mkdir(parents=True)
    (meta / "manifests" / "apply" / "000000000007.json").write_text("{}")
    assert remove(place, "--yes", "--incomplete") == 0
    require_removed(place)


def test_stores_elsewhere(place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (place.conf / "far.yaml").write_text(
        "source: {url: 'mysql://t@127.0.0.1:1', server_id: 7}\ntables: {include: ['a.*']}\n"
        "store: {kind: server, url: 'https://h:8040', token_env: T}\napply: {target: ./lake}\n"
    )
    assert remove(place, "--yes", name="far") == 2
    assert "Run `cdc remove` there" in capsys.readouterr().err
    assert remove(place, "--yes", name="../shop") == 2


def test_the_record_of_a_removal(place: Place) -> None:
    """The format is that of docs/formats/store.md. A removal goes on with what a former one was asked for."""
    table = place.table("shop.orders", OWN)
    record = {
        "version": 1,
        "destination": "shop",
        "lake": True,
        "archive": False,
        "dags": False,
        "has_store": True,
        "has_meta": True,
        "tables": [
            {
                "table": "shop.orders",
                "path": str(table),
                "id": "shop.orders",
                "owner": "own",
                "detail": "",
                "files": 1,
                "bytes": 5,
            }
        ],
    }
    file = place.folder / "data" / "shop" / "store" / "removing.json"
    file.write_text(json.dumps({**record, "tables": 5}))
    assert remove(place, "--yes") == 2
    file.write_text(json.dumps({**record, "destination": "bank"}))
    assert remove(place, "--yes") == 2
    file.write_text(json.dumps(record))
    assert remove(place, "--yes") == 0
    require_removed(place)
    assert not table.exists()


def test_all_names_are_known(place: Place) -> None:
    """Every file that a store and a meta have is one that a removal knows."""
    for folder, names in (("store", STORE_NAMES), ("meta", META_NAMES)):
        assert {path.name for path in (place.folder / "data" / "shop" / folder).iterdir()} <= names
    text = (Path(__file__).parents[3] / "docs" / "formats" / "store.md").read_text()
    rows = text.partition("| name |")[2].partition("\n\n")[0]
    documented = {name.strip("/") for name in rows.replace("`", " ").split() if name.strip("/") in STORE_NAMES}
    assert STORE_NAMES - documented == {
        *("counts.json", "removed.json", "retention.lock"),  # described elsewhere
        *("clock.log", "schemas"),  # sections of their own
    }
