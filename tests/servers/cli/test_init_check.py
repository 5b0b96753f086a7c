"""``cdc init`` and ``cdc check`` against real servers, as new users run them."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.cli import main as cli
from cdc.config import load
from cdc.testing.servers import PASSWORD, Server, free_port


@pytest.fixture(scope="module", params=["mysql9", "mariadb10"])
def source(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, total DECIMAL(10,2))",
            "CREATE DATABASE `other-db`",
            "CREATE TABLE `other-db`.t (id INT PRIMARY KEY)",
        )
        yield server


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CDC_CONF", raising=False)
    monkeypatch.setenv("CDC_SOURCE_PASSWORD", PASSWORD)
    return tmp_path


def init(source: Server, *more: str) -> int:
    return cli.main(["init", source.url, "--target", "./lake", "--tables", r"shop\..*", *more])


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = cli.main(["check", *arguments, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


def errors(answer: dict[str, Any]) -> list[str]:
    assert all(f["remedy"] for f in answer["findings"] if f["level"] != "ok")
    return [f"{f['subject']}: {f['message']}" for f in answer["findings"] if f["level"] == "error"]


def start(file: Path, where: str = "earliest") -> None:
    file.write_text(file.read_text().replace("start: snapshot", f"start: {where}"))


def test_password_in_the_environment(source: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(source) == 0
    out = capsys.readouterr().out
    file = folder / "conf" / "shop.yaml"
    assert out.startswith("Wrote conf/shop.yaml: ")
    assert "1 table of shop, into " in out
    assert "cdc capture shop" in out
    assert "cdc snapshot shop" in out
    config = load(file)
    assert "#   earliest " in file.read_text()
    assert config.source.url == source.url
    assert config.source.password_env == "CDC_SOURCE_PASSWORD"
    assert config.source.start == "snapshot"
    assert config.source.server_id != source.port
    assert config.tables.include == (r"shop\..*",)
    assert config.apply.target == str(folder / "lake")
    assert "./lake" in file.read_text()
    assert PASSWORD not in file.read_text().replace("password", "")
    assert not list(folder.glob("conf/*.password"))


def test_password_in_the_url(source: Server, folder: Path) -> None:
    url = source.url.replace("//t@", f"//t:{PASSWORD}@")
    assert cli.main(["init", url, "--target", "s3a://bucket/lake", "--name", "all"]) == 0
    file, secret = folder / "conf" / "all.yaml", folder / "conf" / "all.password"
    assert yaml.safe_load(file.read_text())["source"]["password_file"] == "all.password"
    assert yaml.safe_load(file.read_text())["tables"]["include"] == [r"other\-db\..*", r"shop\..*"]
    assert f":{PASSWORD}@" not in file.read_text()
    assert secret.read_text() == f"{PASSWORD}\n"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert "*.password" in (folder / "conf" / ".gitignore").read_text()
    config = load(file)
    assert config.apply.target == "s3a://bucket/lake"
    assert config.tables.includes("other-db", "t")


def test_the_wrong_scheme_is_corrected(source: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = "mariadb" if source.url.startswith("mysql") else "mysql"
    url = f"{wrong}://{source.url.split('://')[1]}"
    assert cli.main(["init", url, "--target", "./lake", "--tables", r"shop\..*"]) == 0
    assert "so the URL there begins with" in capsys.readouterr().out
    assert load(folder / "conf" / "shop.yaml").source.url == source.url


def test_nothing_is_written_when_init_fails(
    source: Server, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert init(source, "--tables", "(") == 2
    assert "--tables '(' is not a regular expression" in capsys.readouterr().err
    monkeypatch.setenv("CDC_SOURCE_PASSWORD", "wrong")
    assert init(source) == 2
    assert "the server refuses user 't' with this password" in capsys.readouterr().err
    scheme = source.url.split(":")[0]
    assert cli.main(["init", f"{scheme}://t:Sesam@127.0.0.1:{free_port()}", "--target", "x"]) == 1
    err = capsys.readouterr().err
    assert "connection refused" in err
    assert "Sesam" not in err
    assert list(folder.iterdir()) == []


def test_an_existing_configuration_is_kept(source: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(source) == 0
    before = (folder / "conf" / "shop.yaml").read_text()
    capsys.readouterr()
    assert init(source) == 2
    assert "this configuration exists already, and is not overwritten" in capsys.readouterr().err
    assert (folder / "conf" / "shop.yaml").read_text() == before


def test_an_empty_file_is_filled(source: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "conf").mkdir()
    (folder / "conf" / "shop.yaml").write_text("\n")
    assert cli.main(["check", "shop"]) == 2
    assert "holds no sections. Write it with `cdc init`." in capsys.readouterr().err
    assert init(source) == 0
    assert load(folder / "conf" / "shop.yaml").source.url == source.url


def test_what_to_do_where_no_table_matches_is_the_last_line(
    source: Server, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["init", source.url, "--target", "./lake", "--name", "x"]
    assert cli.main([*command, "--tables", "shop"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(r"Expressions match the whole of db.table: write shop\..*.")
    (folder / "conf" / "x.yaml").unlink()
    assert cli.main([*command, "--tables", "nothing"]) == 0
    out = capsys.readouterr().out
    assert "Then:" not in out and "Expressions match the whole of db.table, such as " in out.splitlines()[-1]


def test_a_folder_that_cannot_be_written(source: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "conf").write_text("a file")
    assert init(source) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "cannot be written" in err


def test_check_of_a_sound_destination(source: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(source) == 0
    code, answer = check(capsys, "shop")
    assert (code, errors(answer), answer["ok"]) == (0, [], True)
    assert {f["subject"] for f in answer["findings"]} >= {"source", "store", "meta", "target", "spark", "java"}
    assert cli.main(["check", "shop"]) == 0
    out = capsys.readouterr().out
    assert "✓ source: binlog: ROW format, FULL image, FULL metadata" in out
    assert out.count("lies in the temporary folder") == 2  # store and meta, since tests run in one
    assert out.endswith("shop: ready, with 2 warnings\n")
    assert sorted(p.name for p in folder.iterdir()) == ["conf"]  # check has created nothing


def test_check_of_this_machine(
    source: Server, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert init(source) == 0
    start(folder / "conf" / "shop.yaml")
    (folder / "data" / "shop" / "meta").mkdir(parents=True)
    (folder / "data" / "shop" / "meta" / "meta.json").write_text("{")
    (folder / "data" / "shop" / "store").write_text("a file")
    (folder / "lake" / "shop" / "orders").mkdir(parents=True)
    (folder / "lake" / "shop" / "orders" / "notes.txt").write_text("not Delta")
    monkeypatch.setenv("JAVA_HOME", str(folder / "no-java"))
    code, answer = check(capsys, "shop")
    messages = errors(answer)
    assert code == 2
    assert messages[0] == f"store: {folder}/data/shop/store is not a folder"
    assert messages[1].startswith(f"meta: {folder}/data/shop/meta/meta.json: is not whole JSON: ")
    assert messages[2] == f"target: {folder}/lake/shop/orders holds something that is not a Delta table"
    assert messages[3].startswith(f"java: {folder}/no-java/bin/java cannot be run")
    assert len(messages) == 4


def test_check_where_nothing_can_be_written(source: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(source) == 0
    file = folder / "conf" / "shop.yaml"
    start(file)
    # /proc takes no folders, not even from root.
    file.write_text(file.read_text().replace(" ./lake", " /proc/lake").replace(" ./data/shop/store", " /proc/store"))
    code, answer = check(capsys, "shop")
    assert code == 2
    assert [line.split(":")[0] for line in errors(answer)] == ["store", "target"]
    assert all("/proc is not writable" in line for line in errors(answer))


def test_check_without_a_source(source: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(source) == 0
    file = folder / "conf" / "shop.yaml"
    start(file)
    file.write_text(file.read_text().replace(f":{source.port}", f":{free_port()}"))
    code, answer = check(capsys, "shop")
    assert code == 1  # the source may come back
    assert answer["ok"] is False
    [message] = errors(answer)
    assert "nothing listens there (connection refused)" in message


def test_init_names_foreign_keys_that_change_rows_without_events(
    source: Server, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.execute(
        "CREATE TABLE shop.items (id INT PRIMARY KEY, o INT,"
        " CONSTRAINT of_order FOREIGN KEY (o) REFERENCES shop.orders (id) ON DELETE CASCADE)"
    )
    try:
        assert init(source) == 0
    finally:
        source.execute("DROP TABLE shop.items")
    said = " ".join(capsys.readouterr().out.split())
    is_silent = source.kind.name != "mysql9"  # which writes row events of the actions
    assert ("the foreign key of_order to shop.orders (ON DELETE CASCADE) changes rows" in said) == is_silent
    assert ("apply executes its actions on the rows of the Delta table" in said) == is_silent
