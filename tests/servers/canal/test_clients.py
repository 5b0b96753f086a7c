"""Canal's own client libraries against ``cdc server``: canal-python from PyPI, the Java client from Maven."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.canal import canal_server, enable_canal, java_client
from cdc.cache import cache_dir
from cdc.capture import Capture
from cdc.config import load
from cdc.testing.servers import HOST, PASSWORD, USER, Server

Database = Callable[[Server], str]
ROWS = 400

PYTHON_CLIENT = "canal-python==0.4"
# The loop of canal-python's example, which prints each value; it ends after a number of rows.
PYTHON_EXAMPLE = """
import sys, time
from canal.client import Client
from canal.protocol import EntryProtocol_pb2

client = Client()
client.connect(host="127.0.0.1", port=int(sys.argv[1]))
client.check_valid(username=b"", password=b"")
client.subscribe(client_id=b"1001", destination=sys.argv[2].encode(), filter=b".*\\\\..*")
rows = 0
while rows < int(sys.argv[3]):
    message = client.get(100)
    for entry in message["entries"]:
        if entry.entryType in [EntryProtocol_pb2.EntryType.TRANSACTIONBEGIN, EntryProtocol_pb2.EntryType.TRANSACTIONEND]:
            continue
        row_change = EntryProtocol_pb2.RowChange()
        row_change.MergeFromString(entry.storeValue)
        for row in row_change.rowDatas:
            rows += 1
            columns = row.afterColumns or row.beforeColumns
            print(entry.header.eventType, *[f"{column.name}={column.value}" for column in columns])
client.disconnect()
"""


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_TEST_PASSWORD", PASSWORD)


@pytest.fixture
def port(mysql9: Server, database: Database, tmp_path: Path) -> Iterator[int]:
    """The port of a server of a store with ROWS inserts, updates and deletes."""
    name = database(mysql9)
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "shop.yaml"
    file.write_text(
        f"source: {{url: 'mysql://{USER}@{HOST}:{mysql9.port}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: 71234, start: now}}\n"
        f"tables: {{include: ['{name}\\..*']}}\nstore: {{path: data/store}}\nmeta: {{path: data/meta}}\n"
        "apply: {target: ./lake}\n"
    )
    Capture(load(file)).run(until_current=True)
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
    Capture(load(file)).run(until_current=True)
    enable_canal(file)
    with canal_server(file.parent, tmp_path / "server.log") as (_, found):
        yield found


@pytest.mark.long
def test_the_python_client(port: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PYTHON_EXAMPLE, str(port), "shop", str(3 * ROWS)],
        env={"PYTHONPATH": str(python_client()), "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
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


@pytest.mark.long
@pytest.mark.parametrize("mode", ["print", "rollback", "reconnect"])
def test_the_java_client(port: int, mode: str) -> None:
    client = java_client()
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
    if mode == "print":
        kinds = Counter(line.split()[-1] for line in done.stdout.splitlines() if line.startswith("ENTRY ROWDATA"))
        assert kinds["INSERT"] == ROWS
        assert kinds["CREATE"] == 1
        assert "after 1 note 12 varchar(40) falsetruefalse nöte 17" in done.stdout
        assert "after 1 note 12 varchar(40) falsetruetrue " in done.stdout
        assert "before 0 id 4 int truefalsefalse 17" in done.stdout
