"""Canal's own client libraries against ``cdc server``: canal-python from PyPI, the Java client from Maven, canal-go."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.canal import canal_server, enable_canal, go_client, java_client
from benchmarks.peers import Peer
from cdc.disk.cache import cache_dir
from cdc.testing.servers import Server
from tests.support.canal_shop import capture, write_shop

Database = Callable[[Server], str]
ROWS = 400

PYTHON_CLIENT = "canal-python==0.4"
# The loop of canal-python's example, which prints each value; it ends after a number of rows, or at a row of the table
# "last". After an error it connects until the server is there.
PYTHON_EXAMPLE = """
import sys, time
from canal.client import Client
from canal.protocol import EntryProtocol_pb2

def connect():
    client = Client()
    client.connect(host="127.0.0.1", port=int(sys.argv[1]))
    client.check_valid(username=b"", password=b"")
    client.subscribe(client_id=b"1001", destination=sys.argv[2].encode(), filter=b".*\\\\..*")
    return client

client = connect()
rows, wanted, ended = 0, int(sys.argv[3]), False
while rows < wanted or (wanted == 0 and not ended):
    try:
        message = client.get(100)
    except Exception:
        if wanted:
            raise
        time.sleep(0.1)
        try:
            client = connect()
        except Exception:
            pass
        continue
    for entry in message["entries"]:
        if entry.entryType in [EntryProtocol_pb2.EntryType.TRANSACTIONBEGIN, EntryProtocol_pb2.EntryType.TRANSACTIONEND]:
            continue
        row_change = EntryProtocol_pb2.RowChange()
        row_change.MergeFromString(entry.storeValue)
        for row in row_change.rowDatas:
            rows += 1
            ended = ended or entry.header.tableName == "last"
            columns = row.afterColumns or row.beforeColumns
            print(entry.header.eventType, *[f"{column.name}={column.value}" for column in columns], flush=True)
client.disconnect()
"""


@dataclass(frozen=True)
class Shop:
    """A destination with ROWS inserts, updates and deletes."""

    file: Path
    server: Server
    database: str

    def serve(self, port: int = 0) -> AbstractContextManager[tuple[subprocess.Popen[bytes], int]]:
        return canal_server(self.file.parent, self.file.parent / "server.log", port)


@pytest.fixture
def shop(mysql9: Server, database: Database, tmp_path: Path) -> Shop:
    name = database(mysql9)
    file = write_shop(tmp_path, mysql9, name)
    capture(file)
    with mysql9.connect() as connection, connection.cursor() as cursor:
        connection.autocommit(False)
        cursor.execute(f"USE {name}")
        cursor.execute("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40), price DECIMAL(10,2))")
        for number in range(ROWS):
            cursor.execute("INSERT INTO orders VALUES (%s, %s, %s)", (number, f"nöte {number}", number / 4))
            if number % 7 == 0:
                connection.commit()
        connection.commit()
        cursor.execute("UPDATE orders SET note = NULL")
        connection.commit()
        cursor.execute("DELETE FROM orders")
        connection.commit()
    capture(file)
    enable_canal(file)
    return Shop(file, mysql9, name)


@pytest.fixture
def port(shop: Shop) -> Iterator[int]:
    with shop.serve() as (_, served_port):
        yield served_port


@pytest.mark.long
def test_the_python_client(port: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PYTHON_EXAMPLE, str(port), "shop", str(3 * ROWS)],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line[:2] in ("1 ", "2 ", "3 ")]
    expected = [f"1 id={n} note=nöte {n} price={n / 4:.2f}" for n in range(ROWS)]
    expected += [f"2 id={n} note= price={n / 4:.2f}" for n in range(ROWS)]
    expected += [f"3 id={n} note= price={n / 4:.2f}" for n in range(ROWS)]
    assert lines == expected


def python_client() -> Path:
    """The folder of canal-python, fetched by pip into a cache."""
    folder = cache_dir() / "canal-clients" / hashlib.sha256(PYTHON_CLIENT.encode()).hexdigest()[:16]
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), PYTHON_CLIENT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"pip cannot fetch {PYTHON_CLIENT}: {done.stderr.strip().splitlines()[-1]}")
    return folder


def python_environment() -> dict[str, str]:
    return {"PYTHONPATH": str(python_client()), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}


def output_of(client: Peer, port: int, mode: str) -> str:
    """Returns the output of an example program that reads all rows, and looks at every value."""
    if client.missing:
        pytest.skip(client.missing)
    done = subprocess.run(
        [*client.command, "127.0.0.1", str(port), "shop", r".*\..*", str(3 * ROWS), mode],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"{3 * ROWS} rows, {3 * ROWS * 4} values" in done.stdout
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("mode", ["print", "rollback", "reconnect"])
def test_the_java_client(port: int, mode: str) -> None:
    seen = output_of(java_client(), port, mode)
    if mode == "print":
        kinds = Counter(line.split()[-1] for line in seen.splitlines() if line.startswith("ENTRY ROWDATA"))
        assert kinds["INSERT"] == ROWS
        assert kinds["CREATE"] == 1
        assert "after 1 note 12 varchar(40) falsetruefalse nöte 17" in seen
        assert "after 1 note 12 varchar(40) falsetruetrue " in seen
        assert "before 0 id 4 int truefalsefalse 17" in seen


@pytest.mark.long
@pytest.mark.parametrize("mode", ["print", "rollback", "reconnect"])
def test_the_go_client(port: int, mode: str) -> None:
    seen = output_of(go_client(), port, mode)
    if mode == "print":
        kinds = Counter(line.split()[1] for line in seen.splitlines() if line.startswith("ROW "))
        assert kinds == {"INSERT": ROWS, "UPDATE": ROWS, "DELETE": ROWS}
        assert "after 1 note 12 varchar(40) false true false nöte 17" in seen
        assert "after 1 note 12 varchar(40) false true true " in seen


@pytest.mark.long
@pytest.mark.parametrize("language", ["python", "java", "go"])
def test_clients_go_on_after_a_kill_and_a_restart_of_the_server(shop: Shop, tmp_path: Path, language: str) -> None:
    environment = None
    if language == "python":
        command, more, environment = [sys.executable, "-c", PYTHON_EXAMPLE], ["0"], python_environment()
    else:
        peer = java_client() if language == "java" else go_client()
        if peer.missing:
            pytest.skip(peer.missing)
        command, more = [*peer.command, "127.0.0.1"], [r".*\..*", "0", "restart"]
    out = tmp_path / "client.txt"
    with shop.serve() as (process, port):
        with out.open("wb") as file:
            client = subprocess.Popen(
                [*command, str(port), "shop", *more], stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        try:
            deadline = time.monotonic() + 90
            while "nöte 17" not in out.read_text():
                assert time.monotonic() < deadline, out.read_text()
                time.sleep(0.02)
            process.kill()
            process.wait(30)
            shop.server.execute(
                f"INSERT INTO {shop.database}.orders VALUES (100000, 'after the kill', 1)",
                f"CREATE TABLE {shop.database}.last (id INT PRIMARY KEY)",
                f"INSERT INTO {shop.database}.last VALUES (1)",
            )
            capture(shop.file)
            with shop.serve(port):
                assert client.wait(120) == 0, out.read_text()[-2000:]
        finally:
            client.kill()
            client.wait(30)
    seen = out.read_text()
    ids = {int(number) for number in re.findall(r"nöte (\d+)", seen)}
    assert ids == set(range(ROWS))
    assert "after the kill" in seen
