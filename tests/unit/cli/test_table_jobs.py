"""``cdc snapshot``, ``cdc replay`` and ``cdc remask``: wrong arguments end with one sentence and exit code 2, and change nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest

from cdc.base.errors import LeaseHeldError, UnsupportedError, UsageError
from cdc.batches import parking
from cdc.batches.service import BatchService
from cdc.binlog.sql.schemas import ColumnSchema, Schemas, TableSchema
from cdc.cli import main as cli
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.lake.jobs.results import AdoptedColumn, TableAdoption
from cdc.lake.jobs.snapshot import due_tables, take_snapshots
from cdc.lake.jobs.table_part import PartRequest
from cdc.meta import ParkedTable
from cdc.store.formats import layout
from tests.support.unit_batches import IDENTITY, make_config, make_store

NOW = datetime(2026, 11, 22, tzinfo=UTC)
ID = ColumnSchema(
    name="id",
    data_type="int",
    column_type="int",
    nullable=False,
    default=None,
    extra="",
    charset=None,
    collation=None,
)


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    """A destination with a store of real segments, whose source has the tables ``bat.o`` and ``bat.empty``."""
    config = make_config(tmp_path)
    make_store(config.store.path)
    service = BatchService(config)
    with service.meta.change() as state:
        state.source = IDENTITY
    return config


def run(capsys: pytest.CaptureFixture[str], config: DestinationConfig, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["--conf-dir", str(config.file.parent), *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def files(config: DestinationConfig) -> dict[str, bytes]:
    """Returns everything below the destination's folders but locks, which hold nothing."""
    root = config.file.parent.parent
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "lock" not in path.name and "locks" not in path.parts
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["snapshot", "absent"], ("'absent'", "shop")),
        (["snapshot", "shop", "o"], ("'o' is not the name of a table", "db.table")),
        (["snapshot", "shop", "other.o"], ("other.o is not among the tables", "tables.include")),
        (["snapshot", "bat.none"], ("the source has no table bat.none", "bat.empty, bat.o")),
        (["snapshot", "shop", "--keys", "1..2"], ("--keys and --where choose rows of tables that are named",)),
        (["snapshot", "bat.o", "--whole", "--where", "id = 1"], ("do not go with --whole", "leave out --whole")),
        (["snapshot", "bat.o", "--where", " "], ("--where is empty", "to take the whole table")),
        (["snapshot", "bat.o", "--keys", "1..2"], ("there is no Delta table of which a part", "the whole table")),
        (["replay", "shop", "bat.o", "--keys", "1", "--to", "5"], ("take neither --from, --to", "--to P --into URI")),
        (["replay", "shop"], ("no table is named", "DB.TABLE")),
        (["replay", "shop", "other.o"], ("other.o is not among the tables",)),
        (["replay", "shop", "bat.o", "--from", "1", "--to", "2"], ("--from", "--to")),
        (["replay", "shop", "bat.o", "--from", "1", "--into", "x"], ("--from", "--into")),
        (["replay", "shop", "bat.o", "--mode", "append"], ("--mode needs --into",)),
        (["replay", "shop", "bat.o", "--mode", "sideways", "--into", "x"], ("sideways", "upsert")),
        (["replay", "shop", "bat.o"], ("nothing was applied yet", "cdc apply shop")),
        (["adopt", "shop", "--from", "debezium"], ("one table is taken over at a time",)),
        (["adopt", "shop", "other.o", "--from", "dms"], ("other.o is not among the tables",)),
        (["adopt", "shop", "bat.missing", "--from", "dms"], ("the source has no table bat.missing",)),
        (["adopt", "bat.o", "--from", "dms"], ("there is no Delta table that could be taken over", "cdc snapshot")),
        (["remask", "shop", "o"], ("'o' is not the name of a table", "db.table")),
        (["remask", "shop", "other.o"], ("other.o is not among the tables",)),
        (["remask", "shop", "bat.o", "--dry-run"], ("there is no Delta table of bat.o", "cdc apply shop")),
        (["replay", "shop", "bat.o", "--to", "yesterday"], ("'yesterday' is neither a seq, nor a time", "Give a seq")),
    ],
)
def test_wrong_arguments(
    config: DestinationConfig, capsys: pytest.CaptureFixture[str], arguments: list[str], words: tuple[str, ...]
) -> None:
    before = files(config)
    code, out, err = run(capsys, config, *arguments)
    assert (code, out) == (2, "")
    for word in words:
        assert word in err
    assert err.count("\n") == 1
    assert files(config) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "yesterday"], ("neither a seq, nor a time",)),
        (["--to", "2026-11-21T10:00:00"], ("time zone",)),
        (["--to", "2026-11-21T10:00:00Z"], ("",)),
        (["--to", "0-1-77"], ("the store has no transaction 0-1-77",)),
        (["--from", "5"], ("no changes of table bat.o before", "Give a later point")),
    ],
)
def test_points_that_the_store_does_not_have(
    config: DestinationConfig, capsys: pytest.CaptureFixture[str], arguments: list[str], words: tuple[str, ...]
) -> None:
    service = BatchService(config)
    service.subscribe("apply")
    code, out, err = run(capsys, config, "replay", "shop", "bat.o", *arguments)
    assert (code, out) == (2, "")
    for word in words:
        assert word in err
    assert service.meta.read().subscription("apply").tables == {}


def test_nothing_was_captured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(tmp_path)
    code, out, err = run(capsys, config, "snapshot", "shop")
    assert (code, out) == (2, "")
    assert "nothing was captured yet" in err
    assert "Start `cdc capture shop` first" in err
    assert list(files(config)) == ["conf/shop.yaml"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "append"}, "has the mode append, and keeps the history of its rows"),
        ({"mode": "scd2"}, "has the mode scd2, and keeps the history of its rows"),
        ({"shared": True}, "several destinations \\(apply.shared\\) have rows"),
    ],
)
def test_tables_without_parts(config: DestinationConfig, settings: dict[str, object], message: str) -> None:
    config = config.model_copy(update={"apply": config.apply.model_copy(update=settings)})
    before = files(config)
    with pytest.raises(UnsupportedError, match=message):
        take_snapshots(config, ["bat.o"], part=PartRequest("1", None))
    assert files(config) == before


@pytest.mark.parametrize(("due", "way"), [("snapshot", "cdc snapshot shop bat.o"), ("hold", "cdc replay shop bat.o")])
def test_a_part_brings_no_table_back(config: DestinationConfig, due: Literal["snapshot", "hold"], way: str) -> None:
    service = BatchService(config)
    service.subscribe("apply")
    parking.park(service.meta, "apply", "bat.o", ParkedTable(due=due, reason="it waits", since=NOW, keep_seq=1))
    with pytest.raises(UsageError, match=f"a part of it does not bring it back: it waits.*{way}"):
        take_snapshots(config, ["bat.o"], part=PartRequest("1", None))


def test_another_job_works_on_the_table(config: DestinationConfig) -> None:
    service = BatchService(config)
    service.subscribe("apply")
    with parking.job_lock(service.meta, "bat.o"), pytest.raises(LeaseHeldError, match="another snapshot or replay"):
        take_snapshots(config, ["bat.o"])
    assert service.meta.read().subscription("apply").parked == {}


def test_tables_that_wait_for_a_snapshot(config: DestinationConfig) -> None:
    assert due_tables(config) == ["bat.empty", "bat.o"]  # start: snapshot, and none was loaded
    service = BatchService(config)
    service.subscribe("apply")
    with service.meta.change() as state:
        subscription = state.subscription("apply")
        subscription.tables["bat.o"] = "0 1 5 id"
        subscription.parked["bat.empty"] = ParkedTable(due="hold", reason="r", since=NOW)
    assert due_tables(config) == []
    with service.meta.change() as state:
        state.subscription("apply").parked["bat.o"] = ParkedTable(due="snapshot", reason="r", since=NOW)
    assert due_tables(config) == ["bat.o"]
    Schemas(tables={"bat.late": TableSchema(columns=(ID,), primary_key=("id",))}).save(
        layout.schemas_folder(config.store.path) / f"{1 << 61}.json"
    )
    assert due_tables(config) == ["bat.late", "bat.o"]


def test_an_adoption_is_shown(
    config: DestinationConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What became of the columns, how much differed, and where the table is now."""
    asked: dict[str, object] = {}
    columns = [AdoptedColumn("__op", "string", None, "dropped: a column of the other tool")]
    result = TableAdoption(
        "bat.o", "/lake/bat/o", columns, rewritten=False, ranges=50, differing=3, rows=1000, read=60, repaired=7,
        done=True, seconds=1.0, version_before=4, delta_version=9, applied_seq=77,
    )  # fmt: skip

    def adopt(_: object, table: str, **options: object) -> TableAdoption:
        asked.update(options, table=table)
        return result

    monkeypatch.setattr(pipeline, "adopt", adopt)
    code, out, _ = run(capsys, config, "adopt", "shop", "bat.o", "--from", "dms", "--drop", "a", "--drop", "b")
    assert code == 0 and (asked["table"], asked["tool"], asked["dropped"]) == ("bat.o", "dms", ["a", "b"])
    for words in (
        "__op    string  –        dropped: a column of the other tool",
        "1,000 rows at the source; 3 of 50 parts",
    ):
        assert words in out
    assert "60 rows were read from the source, and those of 7 keys written; it is taken over at 77, version 9" in (
        " ".join(out.split())
    )
    code, out, _ = run(capsys, config, "adopt", "bat.o", "--from", "dms", "--dry-run", "--json")
    assert code == 0 and json.loads(out)["repaired"] == 7 and asked["dry_run"]
