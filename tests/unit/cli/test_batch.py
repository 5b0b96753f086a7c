"""``cdc batch``, ``cdc status`` and ``cdc inspect`` over a small store of real bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cdc.batches.lease import exclusive
from cdc.batches.service import BatchService
from cdc.cli.main import main
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.meta import open_meta
from tests.support.unit_batches import GOLDEN_BINLOG, IDENTITY, make_config, make_store


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    return make_config(tmp_path)


@pytest.fixture
def segment(config: DestinationConfig) -> Path:
    open_meta(config).bind_source(IDENTITY)
    return make_store(config.store.path)


class Cli:
    """Runs ``cdc`` in this process."""

    def __init__(self, config: DestinationConfig, capsys: pytest.CaptureFixture[str]) -> None:
        self._conf_dir, self._capsys = str(config.file.parent), capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Returns standard output, or the end of standard error if ``code`` is not 0."""
        exit_code = main(["--conf-dir", self._conf_dir, *arguments])
        captured = self._capsys.readouterr()
        assert exit_code == code, captured.err
        assert "Traceback" not in captured.err
        return captured.err if code else captured.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def cdc(config: DestinationConfig, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(config, capsys)


def test_the_protocol_by_hand(cdc: Cli, segment: Path) -> None:
    first = cdc.json("batch", "get", "shop")
    documented = "batch token expires first_seq last_seq transactions row_events bytes ddl tables ranges positions"
    assert set(documented.split()) <= set(first)
    assert (first["batch"], first["transactions"], first["ddl"], first["tables"]) == (1, 1, True, ["bat.o"])
    assert first["ranges"][0]["path"] == str(segment)
    assert first["positions"]["last"]["file"] == "binlog.000007"
    repeated = cdc.json("batch", "get", "shop")
    assert repeated["token"] != first["token"]
    assert {k: v for k, v in repeated.items() if k not in ("token", "expires")} == {
        k: v for k, v in first.items() if k not in ("token", "expires")
    }
    second = cdc.json("batch", "get", "shop", "--ahead")
    assert (second["transactions"], second["row_events"], second["ddl"]) == (3, 3, False)
    listed = cdc.json("batch", "list", "shop")
    assert [entry["batch"] for entry in listed["outstanding"]] == [1, 2]
    assert "token" not in listed["outstanding"][0]
    text = cdc("batch", "ack", "shop", "--batch", "2", "--token", second["token"], code=2)
    assert text == ("cdc: batch 2 cannot be acked: batch 1 is due first. Ack or roll back batch 1 before it.\n")
    text = cdc("batch", "ack", "shop", "--batch", "1", "--token", first["token"], code=2)
    assert "was replaced" in text
    for _ in range(2):
        assert cdc.json("batch", "ack", "shop", "--batch", "1", "--token", repeated["token"]) == {
            "batch": 1,
            "acked": True,
        }
    assert cdc("batch", "rollback", "shop", "--batch", "2", "--token", second["token"]) == "Batch 2 is rolled back.\n"
    assert cdc.json("batch", "get", "shop")["first_seq"] == second["first_seq"]


def test_everything_is_handed_out_once_and_then_nothing(cdc: Cli, segment: Path) -> None:
    seqs, transactions = [], 0
    while (lease := cdc.json("batch", "get", "shop", "--wait", "0")) is not None:
        cdc("batch", "ack", "shop", "--batch", str(lease["batch"]), "--token", lease["token"])
        seqs += [lease["first_seq"], lease["last_seq"]]
        transactions += lease["transactions"]
    assert seqs == sorted(seqs)
    assert transactions == 8
    assert cdc("batch", "get", "shop").startswith("Nothing to hand out")


def test_get_prints_a_table_and_the_next_commands(cdc: Cli, segment: Path) -> None:
    text = cdc("batch", "get", "shop", "--subscriber", "audit")
    token = open_token(text)
    assert f"cdc batch ack shop --subscriber audit --batch 1 --token {token}" in text
    assert "cli:" in cdc("batch", "list", "shop", "--subscriber", "audit")
    assert "is acked" in cdc("batch", "ack", "shop", "--subscriber", "audit", "--batch", "1", "--token", token)


def open_token(text: str) -> str:
    return next(line.split()[1] for line in text.splitlines() if line.startswith("token"))


def test_get_does_not_steal_from_a_running_apply(cdc: Cli, config: DestinationConfig, segment: Path) -> None:
    with exclusive(config):
        assert "another `cdc` command for shop" in cdc("batch", "get", "shop", code=1)
        held = cdc.json("batch", "get", "shop", "--owner", "me", "--lease", "5")
    assert f"batch {held['batch']} is held by me until {held['expires']}" in cdc("batch", "get", "shop", code=1)


def test_status_of_nothing(cdc: Cli) -> None:
    status = cdc.json("status")
    assert status["capture"] == {"running": False, "pid": None, "connected": False, "ended": True, "error": None}
    assert status["store"] == {
        "first_seq": None,
        "last_seq": None,
        "transactions": 0,
        "bytes": 0,
        "complete_until": None,
        "there": False,
        "begins": None,
        "prepared": {"count": 0, "bytes": 0, "transactions": []},
    }
    assert status["subscriptions"] == []
    assert "not read yet" in cdc("status")


def test_status_shows_lag_and_outstanding_batches(cdc: Cli, segment: Path) -> None:
    lease = cdc.json("batch", "get", "shop")
    status = cdc.json("status", "shop")
    (subscription,) = status["subscriptions"]
    assert (subscription["name"], subscription["acked_seq"]) == ("apply", 0)
    assert subscription["behind"] == {"transactions": 8, "bytes": 2188}
    assert subscription["lag_s"] >= 0
    assert subscription["outstanding"][0] == {
        key: subscription["outstanding"][0]["owner"] if key == "owner" else lease[key]
        for key in ("batch", "owner", "first_seq", "last_seq", "expires")
    }
    assert [(t["table"], t["mode"], t["applied_seq"], t["delta_version"]) for t in status["tables"]] == [
        ("bat.empty", "upsert", None, None),
        ("bat.o", "upsert", None, None),
    ]
    text = cdc("status")
    assert "8 transactions" in text
    assert "bat.empty" in text


def test_a_damaged_meta_ends_every_command_with_a_message(cdc: Cli, config: DestinationConfig, segment: Path) -> None:
    file = config.meta.path / "meta.json"
    bad = file.read_bytes().replace(b"uuid-1", b"uuid-2")
    file.write_bytes(bad)
    for command in (["status"], ["batch", "get"], ["batch", "list"]):
        text = cdc(*command, code=2)
        assert text.startswith(f"cdc: {file}: its checksum is wrong")
        assert text.count("\n") == 1
    assert file.read_bytes() == bad


def test_inspect_segment_and_index(cdc: Cli, segment: Path) -> None:
    inspected = cdc.json("inspect", str(segment))
    assert (inspected["kind"], inspected["sound"], inspected["transactions"], inspected["indexed"]) == (
        "segment",
        True,
        8,
        8,
    )
    assert (inspected["source_file"], inspected["ddl_transactions"]) == ("binlog.000007", 2)
    index = cdc.json("inspect", f"{segment}.index")
    assert (index["kind"], index["sound"], index["transactions"]) == ("index", True, 8)
    assert (index["first_seq"], index["last_seq"]) == (inspected["first_seq"], inspected["last_seq"])
    assert "binlog.000007" in cdc("inspect", str(segment))
    assert cdc.json("inspect", str(GOLDEN_BINLOG))["transactions"] == 8


def inspect_damaged(cdc: Cli, path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    assert main(["inspect", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_inspect_says_where_the_damage_is(cdc: Cli, segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = Path(f"{segment}.index")
    good_segment, good_index = segment.read_bytes(), index.read_bytes()
    middle = len(good_segment) // 2
    segment.write_bytes(good_segment[:middle] + bytes([good_segment[middle] ^ 1]) + good_segment[middle + 1 :])
    report, text = inspect_damaged(cdc, segment, capsys)
    assert report["sound"] is False
    assert 0 < report["transactions"] < 8
    assert str(segment) in report["damage"]
    assert str(segment) in text
    segment.write_bytes(good_segment)
    index.write_bytes(good_index[:300] + bytes([good_index[300] ^ 1]) + good_index[301:])
    report, text = inspect_damaged(cdc, index, capsys)
    assert (report["kind"], report["sound"]) == ("index", False)
    assert "entry 1 (byte 256)" in text
    index.write_bytes(good_index)
    segment.write_bytes(good_segment[: len(good_segment) - 294])  # the index has one entry more than the segment
    report, text = inspect_damaged(cdc, segment, capsys)
    assert "entry 7 of the index contradicts the segment" in text


def test_inspect_meta_and_manifest(
    cdc: Cli, config: DestinationConfig, segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = cdc.json("batch", "get", "shop")
    meta = cdc.json("inspect", str(config.meta.path / "meta.json"))
    assert (meta["kind"], meta["sound"], meta["destination"]) == ("meta", True, "shop")
    assert lease["token"] not in json.dumps(meta)
    manifest = cdc.json("inspect", lease["manifest_path"])
    assert (manifest["kind"], manifest["sound"], manifest["batch"]) == ("manifest", True, 1)
    Path(lease["manifest_path"]).write_text('{"format": "towpath-mani')
    report, text = inspect_damaged(cdc, Path(lease["manifest_path"]), capsys)
    assert report["sound"] is False
    assert "is not whole" in text


def test_inspect_finds_a_manifest_whose_segment_is_gone(
    cdc: Cli, segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = cdc.json("batch", "get", "shop")
    shutil.move(segment, segment.with_suffix(".away"))
    report, text = inspect_damaged(cdc, Path(lease["manifest_path"]), capsys)
    assert report["sound"] is False
    assert f"{segment}: the bytes" in text


def test_inspect_of_something_else(cdc: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    (tmp_path / "x.json").write_text("{}")
    for name in ("x.txt", "x.json", "none", "."):
        text = cdc("inspect", str(tmp_path / name), code=2)
        assert "a segment (.binlog) or another binlog file" in text


def test_a_signal_ends_apply_cleanly(
    config: DestinationConfig, segment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    def apply() -> tuple[Any, str]:
        assert main(["--conf-dir", str(config.file.parent), "apply", "shop", "--json"]) == 0
        out, err = capsys.readouterr()
        return json.loads(out), " ".join(err.split())

    monkeypatch.setattr(pipeline, "merge", interrupted)
    out, err = apply()
    assert out == {"batches": []}
    assert err == "shop: stopped; batch 1 was rolled back. The next run takes the same changes."
    assert BatchService(config).outstanding() == []

    # A batch that was handed out when the signal arrived is rolled back too, although the command never saw it.
    fetch = pipeline.fetch
    monkeypatch.setattr(pipeline, "fetch", lambda *a, **k: (fetch(*a, **k), interrupted()))
    assert "batch 2 was rolled back" in apply()[1]
    monkeypatch.setattr(pipeline, "fetch", interrupted)
    assert apply()[1] == "shop: stopped; no batch was under way."
