"""No password, token or key is in anything that the whole loop writes, prints or shows to other users of the machine."""

from __future__ import annotations

import base64
import gzip
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from cdc.testing.servers import HOST, Server, free_port
from tests.support.apply import LOCAL_CONF

SOURCE = "Sesam-source/4711:&"
WRONG = "Sesam-wrong-4712"
SPARK = "Sesam-spark-4713"
HASH = "Sesam-hash-4714-0123456789"
GATEWAY = "Sesam-gateway-4715"
SECRETS = (SOURCE, WRONG, SPARK, HASH, GATEWAY)

COMMANDS = (
    ["init", "{url}", "--target", "{lake}", "--tables", "{db}\\..*", "--name", "first"],
    ["check", "shop"],
    ["capture", "shop", "--until-current", "--metrics-port", "0"],
    ["capture", "other", "--until-current"],
    ["snapshot", "shop"],
    ["sql", "shop", "UPDATE {db}.t SET email = 'c@example' WHERE id = 1"],
    ["capture", "shop", "--until-current"],
    ["apply", "shop", "--until-empty"],
    ["status", "shop", "--json"],
    ["batch", "list", "shop", "--json"],
    ["verify", "shop", "--json"],
    ["history", "shop", "{db}.t", "1", "--json"],
    ["check", "wrong"],
    ["capture", "wrong", "--until-current"],
)
"""Every step of the loop, of three destinations: ``shop``, ``other`` by an Airflow connection, ``wrong`` by a wrong
password."""

LOOP = """
import json, sys
from pathlib import Path
from cdc.cli.main import main
from cdc.config import load_destination
from cdc.source.connection import connect
folder, codes = Path(sys.argv[1]), {}
for words in json.load(sys.stdin):
    if words[0] == "sql":
        with connect(load_destination(folder, words[1]).source) as connection, connection.cursor() as cursor:
            cursor.execute(words[2])
            connection.commit()
    else:
        code = main(["-v", "--log-format", "json", "--conf-dir", str(folder), *words])
        codes.setdefault(words[0], []).append(code)
Path("codes").write_text(json.dumps(codes))
"""
"""One process for all commands, so that Spark starts once. The words come by standard input, which nobody else sees."""


def forms(secret: str) -> set[bytes]:
    """A secret as files and logs may hold it: as it is, in a URL, in JSON, and in Base64."""
    texts = {secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1], secret.replace("&", "&amp;")}
    return {text.encode() for text in texts} | {base64.b64encode(secret.encode()).rstrip(b"=")[:-1]}


def found_in(content: bytes) -> list[str]:
    return [secret for secret in SECRETS if any(form in content for form in forms(secret))]


def leaks(folder: Path, but: set[Path]) -> dict[str, list[str]]:
    """Every file below the folder whose name or content has a secret."""
    leaked_by_file = {}
    for path in sorted(folder.rglob("*")):
        if path in but or path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        if leaked := found_in(os.fsencode(path.relative_to(folder)) + b"\n" + content):
            leaked_by_file[str(path.relative_to(folder))] = leaked
    return leaked_by_file


@contextmanager
def command_lines(process: psutil.Process) -> Iterator[set[str]]:
    """Collects the command lines of a process and of all that it starts: every user of the machine may read them."""
    seen: set[str] = set()
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            try:
                for each in (process, *process.children(recursive=True)):
                    seen.add(" ".join(each.cmdline()))
            except psutil.NoSuchProcess:
                continue  # it has ended since it was listed

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def destination(folder: Path, name: str, server: Server, db: str, password: str) -> None:
    spark = {
        **LOCAL_CONF,
        "spark.hadoop.fs.s3a.secret.key": "${LEAK_SPARK}",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }
    (folder / "conf" / f"{name}.yaml").write_text(
        f"source: {{url: 'mysql://leak@{HOST}:{server.port}', {password}, server_id: {52000 + len(name)},"
        f" start: snapshot}}\n"
        f"tables: {{include: ['{db}\\..*']}}\nstore: {{path: {name}/store, stage: '{(folder / 'stage').as_uri()}'}}\n"
        f"meta: {{path: {name}/meta}}\nbatch: {{max_wait_s: 0}}\n"
        "apply: {target: lake, columns: {email: hash}, hash_key_env: LEAK_HASH}\n"
        f"spark: {{master: 'local[2]', conf: {json.dumps(spark)}}}\n"
        f"metrics: {{host: 127.0.0.1, push: 'http://127.0.0.1:{free_port()}', push_user: u,"
        " push_password_env: LEAK_GATEWAY}\n"
    )


def environment(folder: Path, server: Server) -> Mapping[str, str]:
    (folder / "temporary").mkdir()
    (folder / "events").mkdir()
    login = f"leak:{quote(SOURCE, safe='')}@{HOST}:{server.port}"
    return {
        **os.environ,
        "TMPDIR": str(folder / "temporary"),
        "CDC_SPARK_LOG": "info",
        "CDC_SOURCE_PASSWORD": SOURCE,
        "LEAK_WRONG": WRONG,
        "LEAK_SPARK": SPARK,
        "LEAK_HASH": HASH,
        "LEAK_GATEWAY": GATEWAY,
        "AIRFLOW_CONN_SHOP_DB": f"mysql://{login}",
    }


@pytest.mark.long
def test_no_secret_is_in_what_the_loop_writes(tmp_path: Path, mysql9: Server) -> None:
    db = "leaks"
    mysql9.execute(
        f"CREATE DATABASE {db}",
        f"CREATE TABLE {db}.t (id INT PRIMARY KEY, email VARCHAR(40))",
        f"INSERT INTO {db}.t VALUES (1, 'a@example'), (2, 'b@example')",
        f"CREATE USER leak@'{HOST}' IDENTIFIED BY '{SOURCE}'",
        f"GRANT ALL ON *.* TO leak@'{HOST}'",
    )
    (tmp_path / "conf").mkdir()
    password_file = tmp_path / "conf" / "shop.password"
    password_file.write_text(f"{SOURCE}\n")
    password_file.chmod(0o600)
    destination(tmp_path, "shop", mysql9, db, "password_file: shop.password")
    destination(tmp_path, "other", mysql9, db, "connection: shop_db")
    destination(tmp_path, "wrong", mysql9, db, "password_env: LEAK_WRONG")
    url = f"mysql://leak:{quote(SOURCE, safe='')}@{HOST}:{mysql9.port}"
    values = {"url": url, "lake": str(tmp_path / "lake"), "db": db}
    words = json.dumps([[word.format(**values) for word in command] for command in COMMANDS])
    command = [sys.executable, "-c", LOOP, str(tmp_path / "conf")]
    output, errors = tmp_path / "stdout", tmp_path / "stderr"
    try:
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=environment(tmp_path, mysql9),
                cwd=tmp_path,
                text=True,
            )
            with command_lines(psutil.Process(process.pid)) as lines:
                process.communicate(words, timeout=400)
            assert process.returncode == 0, errors.read_text()[-3000:]
    finally:
        mysql9.execute(f"DROP DATABASE {db}", f"DROP USER leak@'{HOST}'")

    text = errors.read_text()
    codes = json.loads((tmp_path / "codes").read_text())
    failed = {name: exit_codes for name, exit_codes in codes.items() if any(exit_codes)}
    assert failed == {"check": [0, 2], "capture": [0, 0, 0, 2]}, text[-3000:]
    # The loop has done its work, and every secret was used: else nothing would be proved.
    [line] = [json.loads(line) for line in text.splitlines() if '"event": "table applied"' in line]
    counts = {key: line[key] for key in ("table", "changes", "inserted", "updated", "deleted", "skipped", "files")}
    assert counts == {
        "table": f"{db}.t", "changes": 1, "inserted": 0, "updated": 1, "deleted": 0, "skipped": 0, "files": 1,
    }  # fmt: skip
    assert "the metrics of the run were not pushed" in text
    assert list((tmp_path / "events").iterdir())
    assert any(line for line in lines if "java" in line)

    kept = {path for path in (tmp_path / "conf").iterdir() if path.suffix == ".password"}
    assert kept == {password_file, tmp_path / "conf" / "first.password"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}, "the user's files, and that of cdc init"
    shown = [line[:400] for line in (output.read_text() + text).splitlines() if found_in(line.encode())]
    assert shown == []
    assert leaks(tmp_path, kept) == {}
    assert not [line for line in lines if found_in(line.encode())]


@pytest.mark.parametrize("secret", SECRETS)
def test_the_search_finds_what_it_searches_for(tmp_path: Path, secret: str) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(f"user:{secret}@host".encode()))
    (tmp_path / "b").write_bytes(b"\0" + base64.b64encode(secret.encode()) + b"\0")
    (tmp_path / "c").write_text(f"mysql://u:{quote(secret, safe='')}@h")
    (tmp_path / "d").write_text("nothing")
    assert leaks(tmp_path, set()) == {name: [secret] for name in ("a.gz", "b", "c")}
