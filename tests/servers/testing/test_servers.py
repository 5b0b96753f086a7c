"""cdc.testing.servers: real servers start, stop, restart, and end with their starter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdc.base.errors import SourceUnavailableError, UsageError
from cdc.testing.servers import Server, client_tool, free_port, packages, stop_detached

ROOT = Path(__file__).resolve().parents[3]


def _rows(server: Server) -> int:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM shop.a")
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])


def _gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11", "mariadb10", "mysql56"])
def test_a_killed_database_restarts_with_all_data(kind: str) -> None:
    with Server(kind) as server:
        server.execute(
            "CREATE DATABASE shop", "CREATE TABLE shop.a (i INT PRIMARY KEY)", "INSERT INTO shop.a VALUES (1)"
        )
        folder, port = server.folder, server.port
        server.kill()
        assert not server.alive
        server.restart()
        assert (_rows(server), server.port) == (1, port)
        if server.kind.tools:
            tool = next(name for name in server.kind.tools if name.endswith("binlog"))
            listing = subprocess.run(
                [*client_tool(kind, tool), str(server.data / "binlog.000001")], capture_output=True, text=True
            )
            assert listing.returncode == 0, listing.stderr
            assert "CREATE TABLE shop.a" in listing.stdout
    assert not folder.exists()


def test_zookeeper_serves() -> None:
    with Server("zookeeper") as server:
        assert server.kind.answers(server.port)
        server.kill()
        assert not server.kind.answers(server.port)
        server.restart()
        assert server.url == f"127.0.0.1:{server.port}"


def test_a_server_dies_with_its_starter() -> None:
    program = (
        "import time\nfrom cdc.testing.servers import Server\n"
        "server = Server('mariadb10').start()\nprint(server.pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert not _gone(pid)
        starter.kill()
        end = time.monotonic() + 10
        while not _gone(pid):
            assert time.monotonic() < end, "the server outlives its starter"
            time.sleep(0.05)


def test_a_detached_server_stays_until_it_is_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    Server("mariadb10", folder=folder, detach=True).start()
    pid = int((folder / "server.pid").read_text())
    try:
        assert not _gone(pid)
    finally:
        stop_detached(folder)
    with Server("mariadb10", folder=folder, detach=False).restart() as server:
        server.execute("CREATE DATABASE shop")
    with pytest.raises(UsageError, match="no detached server"):
        stop_detached(folder)


def test_a_port_in_use_is_an_error(mariadb10: Server) -> None:
    with pytest.raises(SourceUnavailableError, match=f"listens at port {mariadb10.port}"):
        Server("mariadb10", port=mariadb10.port).start()


def test_an_unknown_option_is_in_the_message() -> None:
    with pytest.raises(SourceUnavailableError, match="no-such-option"):
        Server("mariadb10", options=["--no-such-option=1"]).start()


def test_unknown_names_are_errors() -> None:
    with pytest.raises(UsageError, match=r"known kinds: kafka, mariadb10, mariadb105, .*mysql9, versitygw, zookeeper"):
        Server("oracle")
    with pytest.raises(UsageError, match="has: mariadb, mariadb-binlog"):
        client_tool("mariadb10", "mysqlbinlog")


def test_a_package_that_cannot_be_downloaded_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_SERVERS", str(tmp_path))
    monkeypatch.setenv(packages.MIRROR_VARIABLE, f"http://127.0.0.1:{free_port()}/debian")
    package = packages.DebianPackages("bookworm", ("mariadb-server-core",), "usr/sbin/mariadbd")
    with pytest.raises(SourceUnavailableError, match="apt-get update"):
        packages.fetch("mariadb10", package)
    assert [path.name for path in tmp_path.iterdir()] == ["mariadb10.lock"], "an incomplete download was left"


PROGRAM = packages.GoProgram("example.org/tool", "v1.0.0", "cmd/tool", "h1:expected=")


def test_a_program_is_not_built_without_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_SERVERS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(SourceUnavailableError, match=r"tool is built with Go, and this machine has no `go` command"):
        packages.fetch("tool", PROGRAM)


def test_a_changed_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_SERVERS", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    go = tmp_path / "go"
    go.write_text(
        '#!/bin/sh\nif [ $1 = install ]; then touch "$GOBIN/tool"; else printf "\\tmod\\texample.org/tool\\tv1.0.0\\th1:other=\\n"; fi\n'
    )
    go.chmod(0o755)
    with pytest.raises(SourceUnavailableError, match=r"has the digest h1:other= instead of h1:expected="):
        packages.fetch("tool", PROGRAM)
    assert not (tmp_path / "cache" / "tool").exists()


def test_ctrl_c_stops_the_server() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "cdc.testing.servers", "start", "mariadb10"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("mariadb://t@127.0.0.1:")
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 0
