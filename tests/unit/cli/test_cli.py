"""The command line: help, errors, exit codes, and modules that must not be loaded for help."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from cdc import __version__
from cdc.base.errors import ConfigError, SourceUnavailableError, UsageError
from cdc.cli import common
from cdc.cli import main as cli

GOLDEN = Path(__file__).parents[2] / "golden"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--help")
    assert (code, err) == (0, "")
    for name in ("init", "check", "capture", "status", "batch", "apply", "inspect", "decode"):
        assert f" {name} " in out


@pytest.mark.parametrize(
    "name", ["init", "check", "capture", "status", "batch", "apply", "inspect", "decode", "verify"]
)
def test_each_command_has_help(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert f"Usage: cdc {name}" in out


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from cdc.cli import main as cli; assert cli.main(['--help']) == 0;"
        "heavy = {'numba', 'numpy', 'pyarrow', 'pyspark', 'pymysql', 'deltalake', 'airflow', 'pydantic'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def loaded(*arguments: str) -> set[str]:
    """The modules that a command has loaded at its end, and their packages."""
    script = "import sys; from cdc.cli import main as cli; code = cli.main(); print(*sys.modules, file=sys.stderr); sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    names = done.stderr.splitlines()[-1].split()
    return {*names, *(name.partition(".")[0] for name in names)}


def commands_in(modules: set[str]) -> set[str]:
    return {name for name in cli.COMMANDS if f"cdc.cli.{name}" in modules}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["capture", "shop", "status"], "capture"),
        (["-v", "--conf-dir", "apply", "--log-format=json", "status", "--json"], "status"),
        (["--conf-dir=x", "--verbose", "batch", "get"], "batch"),
        (["--conf-dir", "status"], None),
        (["--help", "status"], None),
        (["-h"], None),
        (["stats", "status"], None),
        (["--unknown", "status"], None),
        ([], None),
    ],
)
def test_the_command_is_found_before_the_arguments_are_parsed(arguments: list[str], name: str | None) -> None:
    assert cli._command_name(arguments) == name


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_alone_is_the_one_of_the_whole_command_line(name: str) -> None:
    alone, whole = (typer.main.get_command(app) for app in (cli.application((name,)), cli.application()))
    assert isinstance(alone, typer.core.TyperGroup) and isinstance(whole, typer.core.TyperGroup)
    assert list(alone.commands) == [name]
    assert [parameter.opts for parameter in alone.params] == [parameter.opts for parameter in whole.params]
    assert {*whole.commands} == {*cli.COMMANDS}


def test_status_loads_neither_compiler_nor_arrow_nor_driver(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "shop.yaml").write_text(
        "source: {url: 'mysql://u@127.0.0.1:1', server_id: 1, start: earliest}\n"
        "tables: {include: ['shop\\..*']}\nstore: {path: store}\nmeta: {path: meta}\napply: {target: lake}\n"
    )
    modules = loaded("--conf-dir", str(tmp_path / "conf"), "status", "shop", "--json")
    assert not {"numba", "llvmlite", "pyarrow", "pymysql", "structlog", "deltalake", "pyspark", "rich"} & modules
    assert commands_in(modules) == {"status"}


def test_decode_loads_no_compiler_once_its_kernels_are_compiled() -> None:
    arguments = ("decode", str(GOLDEN / "decode-mysql9.binlog"), "--table", "shop.every")
    assert "pyarrow" in loaded(*arguments)
    modules = loaded(*arguments)
    assert not {"numba", "structlog", "pymysql", "pyspark", "rich", "pandas"} & modules
    assert commands_in(modules) == {"decode"}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"towpath {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fly"], "cdc: No such command 'fly'. See `cdc --help`.\n"),
        (["init"], "cdc: Missing argument 'URL'. See `cdc init --help`.\n"),
        (["status", "--jason"], "cdc: No such option: --jason"),
        (["--log-format", "xml", "status"], "cdc: Invalid value for '--log-format': "),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(expected)
    assert err.count("\n") == 1


def test_no_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "--conf-dir", str(tmp_path / "conf"), "status", "shop", "--json")
    assert (code, out) == (2, "")
    assert err.startswith(f"cdc: {tmp_path}/conf: this folder does not exist. Write a configuration with `cdc init`")


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (SourceUnavailableError("it\nsleeps", place="source h:1"), 1, "cdc: source h:1: it sleeps\n"),
        (ConfigError("is wrong", place="f", remedy="Correct it."), 2, "cdc: f: is wrong. Correct it.\n"),
        (KeyboardInterrupt(), 1, "cdc: Stopped.\n"),
    ],
)
def test_errors_become_a_message_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, expected: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("cdc.config.load_destination", fail)
    assert run(capsys, "status", "shop") == (code, "", expected)


def test_an_unexpected_error_leaves_its_traceback_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr("cdc.config.load_destination", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code, out, err = run(capsys, "status", "shop")
    [file] = tmp_path.glob("cdc-*.traceback")
    assert (code, out) == (1, "")
    assert err == f"cdc: unexpected ZeroDivisionError: a mistake. The traceback is in {file}; please report it.\n"
    assert "Traceback" in file.read_text()
    code, _, err = run(capsys, "-v", "status", "shop")
    assert code == 1
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://u:Sesam@h", "the URL does not begin with mysql:// or mariadb://"),
        ("mysql://u:Sesam@h:99999", "the URL has no valid host and port"),
        ("mysql://h", "the URL names no user"),
        ("mysql://u@", "the URL names no host"),
        ("mysql://u:Sesam@h/shop", "the URL has something after the port"),
        ("binlog:///var/lib/mysql", "a configuration is made from a server's answers, and a folder"),
    ],
)
def test_init_refuses_a_url(capsys: pytest.CaptureFixture[str], tmp_path: Path, url: str, expected: str) -> None:
    code, out, err = run(capsys, "--conf-dir", str(tmp_path / "conf"), "init", url, "--target", "./lake")
    assert (code, out) == (2, "")
    assert err.startswith(f"cdc: {expected}")
    assert "Sesam" not in err
    assert not (tmp_path / "conf").exists()


def test_init_refuses_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "shop.yaml").write_text("mine")
    arguments = ("--conf-dir", str(conf), "init", "mysql://u@h", "--target", "./lake", "--name")
    code, _, err = run(capsys, *arguments, "shop")
    assert code == 2
    assert err.startswith(f"cdc: {conf}/shop.yaml: this configuration exists already, and is not overwritten")
    assert (conf / "shop.yaml").read_text() == "mine"
    code, _, err = run(capsys, *arguments, "../shop")
    assert code == 2
    assert err.startswith("cdc: '../shop' cannot be the name of a destination")


def test_init_needs_a_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CDC_SOURCE_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _, err = run(capsys, "--conf-dir", str(tmp_path), "init", "mysql://u@h", "--target", "./lake")
    assert code == 2
    assert "Set $CDC_SOURCE_PASSWORD" in err


def test_json_of_all_types_that_commands_print(capsys: pytest.CaptureFixture[str]) -> None:
    from datetime import UTC, datetime

    common.print_json({"at": datetime(2026, 1, 2, tzinfo=UTC), "path": Path("/x"), "set": {2, 1}, "text": "ü"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"at": "2026-01-02T00:00:00Z", "path": "/x", "set": [1, 2], "text": "ü"}
    with pytest.raises(TypeError):
        common.print_json(object())


def test_usage_errors_are_permanent() -> None:
    assert UsageError("x").exit_code == 2


def test_names_of_the_source_forge_nothing_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "a\x1b[2J\x9b31m\nshop: ready\r"
    common.out().print(common.one_line(forged), markup=False)
    common.out().print(forged, style="bold", markup=False)
    common.say(common.one_line(forged))
    cli._print_error(forged)
    said = capsys.readouterr()
    assert said.out == "a\\x1b[2J\\x9b31m\\nshop: ready\\r\na\\x1b[2J\\x9b31m\nshop: ready\n"
    assert said.err == "a\\x1b[2J\\x9b31m\\nshop: ready\\r\ncdc: a\\x1b[2J\\x9b31m shop: ready\n"
