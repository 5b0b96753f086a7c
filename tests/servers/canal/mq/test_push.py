"""``cdc push`` against a real broker of Kafka: formats, order, kills of the push and of the broker, and refusals."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.capture import Capture
from cdc.config import load
from cdc.testing.servers import HOST, USER, Server, free_port
from tests.fault.support import wait_for
from tests.servers.server.test_instances import ROLES, is_alive
from tests.support.canal_proto import parsed
from tests.support.configurations import server_id_of
from tests.support.instances import OPERATOR, Operator
from tests.support.instances import change as change_file
from tests.support.kafka import CDC, Record, configure, create_topic, push, records, start_push
from tests.support.server import client_config, server_process, with_tokens

Database = Callable[[Server], str]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Server]:
    with Server("kafka", options=["num.partitions=1"]) as server:
        yield server


@pytest.fixture
def source(mariadb11: Server, database: Database, tmp_path: Path) -> tuple[Server, str, Path]:
    """A server, an empty database with the table ``orders``, and a configuration whose store begins before it."""
    name = database(mariadb11)
    (tmp_path / "conf").mkdir()
    file = tmp_path / "conf" / "shop.yaml"
    file.write_text(
        f"source: {{url: 'mariadb://{USER}@{HOST}:{mariadb11.port}', password_env: TOWPATH_TEST_PASSWORD,"
        f" server_id: {server_id_of(file)}, start: now}}\n"
        f"tables: {{include: ['{name}\\..*']}}\nstore: {{path: data/store}}\nmeta: {{path: data/meta}}\n"
        "apply: {target: ./lake}\n"
    )
    Capture(load(file)).run(until_current=True)
    mariadb11.execute(
        f"CREATE TABLE {name}.orders (id INT PRIMARY KEY, note VARCHAR(40), price DECIMAL(10,2), n INT NOT NULL)"
    )
    return mariadb11, name, file


def change(server: Server, name: str, transactions: int, seed: int, keys: int = 40) -> list[tuple[int, int | None]]:
    """Makes random transactions. Returns each change as key and ``n``, which grows; None for a deletion."""
    dice = random.Random(seed)
    made: list[tuple[int, int | None]] = []
    alive: set[int] = set()
    with server.connect() as connection, connection.cursor() as cursor:
        connection.autocommit(False)
        cursor.execute(f"SELECT id, n FROM {name}.orders")
        rows = cursor.fetchall()
        alive = {row[0] for row in rows}
        n = 1_000_000 * seed
        for _ in range(transactions):
            for _ in range(dice.randint(1, 4)):
                n += 1
                key = dice.randrange(keys)
                if key not in alive:
                    cursor.execute(f"INSERT INTO {name}.orders VALUES (%s, %s, %s, %s)", (key, f'nöte "{n}"', n / 4, n))
                    alive.add(key)
                    made.append((key, n))
                elif dice.random() < 0.3:
                    cursor.execute(f"DELETE FROM {name}.orders WHERE id = %s", (key,))
                    alive.discard(key)
                    made.append((key, None))
                else:
                    cursor.execute(f"UPDATE {name}.orders SET n = %s, price = %s WHERE id = %s", (n, n / 4, key))
                    made.append((key, n))
            connection.commit()
    return made


def topic_of(name: str) -> str:
    return f"{name}_orders"


def state_of(server: Server, name: str) -> dict[int, tuple[Any, ...]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, note, price, n FROM {name}.orders")
        return {row[0]: row[1:] for row in cursor.fetchall()}


@pytest.mark.rule("canal-server-24")
def test_flat_messages_have_the_rows_of_the_source(kafka: Server, source: tuple[Server, str, Path]) -> None:
    server, name, file = source
    made = change(server, name, 60, seed=1)
    server.execute(f"ALTER TABLE {name}.orders ADD COLUMN extra JSON")
    server.execute(f"INSERT INTO {name}.orders VALUES (1000, 'a\\\\b', NULL, 5, '{{\"x\": 1}}')")
    Capture(load(file)).run(until_current=True)
    create_topic(kafka.url, topic_of(name), 3)
    configure(
        file,
        servers=[kafka.url],
        topic=f"{name}_rest",
        dynamic_topics=rf"{name}\..*",
        partitions=3,
        partition_hash=r".*\..*:$pk$",
        database_hash=False,
    )
    done = push(file.parent, "--until-empty", "--json")
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert status["behind"]["transactions"] == 0
    assert status["last_error"] is None
    pushed = records(kafka.url, topic_of(name))
    assert status["messages"] == len(pushed)
    assert all(record.key is None for record in pushed)
    messages = [(record.partition, json.loads(record.value or b"")) for record in pushed]
    ddl = [(part, message) for part, message in messages if message["isDdl"]]
    assert [(part, message["type"]) for part, message in ddl] == [(0, "CREATE"), (0, "ALTER")]
    assert ddl[1][1]["sql"] == f"ALTER TABLE {name}.orders ADD COLUMN extra JSON"
    by_key: dict[int, list[int | None]] = {}
    state: dict[int, dict[str, Any]] = {}
    for part, message in messages:
        if message["isDdl"]:
            continue
        assert (message["database"], message["table"], message["pkNames"], message["sql"]) == (
            name,
            "orders",
            ["id"],
            "",
        )
        assert message["mysqlType"]["price"] == "decimal(10,2)" and message["sqlType"]["note"] in (12, 3)
        for number, row in enumerate(message["data"]):
            key = int(row["id"])
            assert part == abs(java(row["id"])) % 3
            by_key.setdefault(key, []).append(None if message["type"] == "DELETE" else int(row["n"]))
            if message["type"] == "UPDATE":
                old = message["old"][number]
                before = state[key]
                assert old == {column: before[column] for column in old}
                assert set(old) == {column for column in before if before[column] != row[column]}
            else:
                assert message["old"] is None
            state[key] = row
            if message["type"] == "DELETE":
                del state[key]
    expected: dict[int, list[int | None]] = {1000: [5]}
    for key, n in made:
        expected.setdefault(key, []).append(n)
    assert by_key == expected
    rows = state_of(server, name)
    assert set(state) == set(rows)
    for key, (note, price, n) in rows.items():
        row = state[key]
        assert (row["note"], row["price"], row["n"]) == (note, None if price is None else str(price), str(n))
    assert state[1000]["extra"] == '{"x": 1}'


def java(text: str) -> int:
    """``String.hashCode()`` of ASCII."""
    value = 0
    for byte in text.encode():
        value = (31 * value + byte) % (1 << 32)
    return value - (1 << 32) if value >> 31 else value


def final_state(pushed: list[Record]) -> dict[int, tuple[Any, ...]]:
    """Returns the state of a consumer that keeps the last message of each key, from Debezium's envelopes."""
    state: dict[int, tuple[Any, ...]] = {}
    for record in pushed:
        key = json.loads(record.key or b"")["id"]
        value = None if record.value is None else json.loads(record.value)
        if value is None or value["after"] is None:
            state.pop(key, None)
        else:
            after = value["after"]
            state[key] = (after["note"], after["price"], after["n"])
    return state


@pytest.mark.long
def test_two_sources_fill_one_topic(
    kafka: Server, source: tuple[Server, str, Path], mysql9: Server, database: Database
) -> None:
    """Each keeps its own order, whatever the other sends meanwhile."""
    server, name, file = source
    other_name, other_file = database(mysql9), file.with_name("other.yaml")
    document = yaml.safe_load(file.read_text())
    document["source"] |= {"url": f"mysql://{USER}@{HOST}:{mysql9.port}", "server_id": server_id_of(other_file)}
    document |= {
        "tables": {"include": [rf"{other_name}\..*"]},
        "store": {"path": "o/store"},
        "meta": {"path": "o/meta"},
    }
    other_file.write_text(yaml.safe_dump(document))
    Capture(load(other_file)).run(until_current=True)
    mysql9.execute(
        f"CREATE TABLE {other_name}.orders (id INT PRIMARY KEY, note VARCHAR(40), price DECIMAL(10,2), n INT)"
    )
    made = {name: change(server, name, 80, seed=1), other_name: change(mysql9, other_name, 80, seed=2)}
    topic = f"{name}_both"
    create_topic(kafka.url, topic, 3)
    pushes = []
    for each in (file, other_file):
        Capture(load(each)).run(until_current=True)
        configure(each, servers=[kafka.url], topic=topic, partitions=3, partition_hash=r".*\..*:$pk$")
        command = [*CDC, "--conf-dir", str(each.parent), "push", each.stem, "--until-empty"]
        pushes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    assert [process.wait(120) for process in pushes] == [0, 0]
    seen: dict[tuple[str, int], list[int | None]] = {}
    for record in records(kafka.url, topic):
        message = json.loads(record.value or b"")
        for row in message["data"] or ():
            n = None if message["type"] == "DELETE" else int(row["n"])
            seen.setdefault((message["database"], int(row["id"])), []).append(n)
    expected: dict[tuple[str, int], list[int | None]] = {}
    for database_name, changes in made.items():
        for key, n in changes:
            expected.setdefault((database_name, key), []).append(n)
    assert seen == expected


@pytest.mark.long
def test_kills_of_the_push_and_of_the_broker_lose_nothing_and_keep_the_order_of_each_key(
    source: tuple[Server, str, Path], tmp_path: Path, seed: int
) -> None:
    server, name, file = source
    dice = random.Random(seed)
    with Server("kafka", options=["auto.create.topics.enable=false"]) as broker:
        create_topic(broker.url, topic_of(name), 3)
        configure(
            file,
            servers=[broker.url],
            topic=topic_of(name),
            format="debezium-json",
            decimals="string",
            delivery_timeout="30s",
            properties={"linger.ms": 20},
        )
        made: list[tuple[int, int | None]] = []
        stop = threading.Event()
        capture = threading.Thread(target=lambda: Capture(load(file)).run(stop))
        capture.start()
        log = tmp_path / "push.log"
        process: subprocess.Popen[bytes] | None = None
        try:
            for round_ in range(6):
                process = start_push(file.parent, log)
                made += change(server, name, dice.randint(20, 60), seed=round_ + 1)
                time.sleep(dice.uniform(0.2, 2.5))
                if round_ == 2:
                    broker.kill()
                    time.sleep(0.5)
                    broker.restart()
                process.kill()
                process.wait()
        finally:
            if process is not None and process.poll() is None:
                process.kill()
            made += change(server, name, 5, seed=99)
            time.sleep(2.5)
            stop.set()
            capture.join()
        done = push(file.parent, "--until-empty", "--json")
        assert done.returncode == 0, f"{done.stderr}\n{log.read_text()[-2000:]}"
        assert json.loads(done.stdout)["behind"]["transactions"] == 0
        for committed in (True, False):
            pushed = records(broker.url, topic_of(name), committed=committed)
            check_order(pushed, made)
            rows = {key: (note, str(price), n) for key, (note, price, n) in state_of(server, name).items()}
            assert final_state(pushed) == rows


def has_all(pushed: list[Record], made: list[tuple[int, int | None]]) -> bool:
    """Whether the last state of each key has come."""
    last = {json.loads(record.key or b"")["id"]: record for record in pushed if record.value is not None}
    states = {key: json.loads(record.value or b"")["after"] for key, record in last.items()}
    return {key: None if after is None else after["n"] for key, after in states.items()} == dict(made)


def check_order(pushed: list[Record], made: list[tuple[int, int | None]]) -> None:
    """Each change of a key is there, in the source's order; only runs of changes that came before are repeated."""
    expected: dict[int, list[int | None]] = {}
    for key, n in made:
        expected.setdefault(key, []).append(n)
    seen: dict[int, list[int | None]] = {}
    places: dict[int, int] = {}
    for record in pushed:
        key = json.loads(record.key or b"")["id"]
        assert places.setdefault(key, record.partition) == record.partition
        if record.value is None:  # the tombstone behind a deletion
            continue
        after = json.loads(record.value)["after"]
        seen.setdefault(key, []).append(None if after is None else after["n"])
    assert set(seen) == set(expected)
    for key, changes in expected.items():
        at = 0  # how many of the key's changes have arrived
        position = 0  # the change that came last
        for n in seen[key]:
            if at < len(changes) and position == at and n == changes[at]:
                at += 1
                position = at
                continue
            candidates = [i for i in range(at) if changes[i] == n]
            assert candidates, (key, n, changes[:at])
            if position < at and changes[position] == n:
                position += 1
            else:  # a repetition begins
                position = candidates[-1] + 1
        assert at == len(changes), f"{len(changes) - at} changes of key {key} are missing"


@pytest.mark.long
def test_packets_have_canals_entries(kafka: Server, source: tuple[Server, str, Path]) -> None:
    server, name, file = source
    made = change(server, name, 30, seed=3)
    Capture(load(file)).run(until_current=True)
    create_topic(kafka.url, topic_of(name), 2)
    configure(
        file,
        servers=[kafka.url],
        topic=topic_of(name),
        format="canal-protobuf",
        partitions=2,
        partition_hash=f"{name}.orders:id",
        transactions=False,
    )
    done = push(file.parent, "--until-empty")
    assert done.returncode == 0, done.stderr
    keys: dict[int, list[int | None]] = {}
    for record in records(kafka.url, topic_of(name)):
        packet = parsed("Packet", record.value or b"")
        assert packet.type == 7
        for raw in parsed("Messages", packet.body).messages:
            entry = parsed("Entry", raw)
            change_ = parsed("RowChange", entry.store_value)
            for row in change_.row_datas:
                columns = {column.name: column for column in row.after_columns or row.before_columns}
                value = columns["id"].value
                assert record.partition == abs(java(name) ^ java(value)) % 2
                deleted = entry.header.event_type == 3
                keys.setdefault(int(value), []).append(None if deleted else int(columns["n"].value))
    expected: dict[int, list[int | None]] = {}
    for key, n in made:
        expected.setdefault(key, []).append(n)
    assert keys == expected


@pytest.mark.long
def test_a_message_that_is_too_large_ends_the_push_and_nothing_is_skipped(
    kafka: Server, source: tuple[Server, str, Path]
) -> None:
    server, name, file = source
    server.execute(f"ALTER TABLE {name}.orders MODIFY note LONGTEXT")
    server.execute(f"INSERT INTO {name}.orders VALUES (1, REPEAT('x', 30000), 1, 1)")
    server.execute(f"INSERT INTO {name}.orders VALUES (2, 'small', 1, 2)")
    Capture(load(file)).run(until_current=True)
    create_topic(kafka.url, topic_of(name), 1, {"max.message.bytes": "20000"})
    settings: dict[str, Any] = {"servers": [kafka.url], "topic": topic_of(name)}
    configure(file, **settings, max_message_bytes=10_000)
    done = push(file.parent, "--until-empty")
    assert done.returncode == 2
    for word in (f"table {name}.orders", "position", "mq.max_message_bytes, which is 10,000", topic_of(name)):
        assert word in done.stderr
    configure(file, **settings)
    done = push(file.parent, "--until-empty")
    assert done.returncode == 2
    assert "max.message.bytes of the topic" in done.stderr and topic_of(name) in done.stderr
    assert [json.loads(record.value or b"")["isDdl"] for record in records(kafka.url, topic_of(name))] == [True, True]
    checked = subprocess.run([*check_command(file), "--json"], capture_output=True, text=True, timeout=120)
    findings = [finding for finding in json.loads(checked.stdout)["findings"] if finding["subject"] == "mq"]
    assert any(finding["level"] == "error" and "20,000" in finding["message"] for finding in findings), findings
    mq_section = yaml.safe_load(file.read_text())["mq"]
    assert mq_section["topic"] == topic_of(name)


@pytest.mark.long
def test_a_server_runs_the_push_and_starts_it_again(
    kafka: Server, source: tuple[Server, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, after a wrong configuration, and after an operator's stop; it ends with its server."""
    server, name, file = source
    monkeypatch.setenv("TOWPATH_OPERATOR", OPERATOR)
    create_topic(kafka.url, topic_of(name), 1)
    mq = {"servers": [kafka.url], "topic": topic_of(name), "format": "debezium-json", "decimals": "string"}
    configure(file, **mq)
    change_file(file, server={"capture": "always", "push": "always", **ROLES})
    made = change(server, name, 10, seed=1)

    def has(state: str) -> Callable[[dict[str, Any]], bool]:
        return lambda document: bool(document) and document["push"]["state"] == state

    with server_process(load(file), tmp_path) as process:
        operator = Operator(process.url, OPERATOR)
        first = operator.wait("shop", has("running"))["push"]["pid"]
        os.kill(first, signal.SIGKILL)
        restarted = operator.wait(
            "shop", lambda document: has("running")(document) and document["push"]["pid"] != first
        )
        assert restarted["push"]["restarts"] == 1
        made += change(server, name, 10, seed=2)
        configure(file, **mq, security={"protocol": "ssl", "ca_file": str(tmp_path / "none.pem")})
        failed = operator.wait("shop", has("failed"))
        assert failed["state"] == "failed"
        assert failed["error"]["message"].startswith("push ended with exit code 2: ")
        assert failed["capture"]["state"] == "running"
        made += change(server, name, 10, seed=3)
        configure(file, **mq)
        operator.wait("shop", has("running"))
        assert operator.act("shop", "stop")["push"]["state"] == "off"
        made += change(server, name, 10, seed=4)
        operator.act("shop", "start")
        pid = operator.wait("shop", has("running"))["push"]["pid"]
        wait_for(lambda: has_all(records(kafka.url, topic_of(name)), made), "all messages")
        process.stop(signal.SIGKILL)
        wait_for(lambda: not is_alive(pid), "the end of the push")
    check_order(records(kafka.url, topic_of(name)), made)


def check_command(file: Path) -> list[str]:
    from tests.support.kafka import CDC

    return [*CDC, "--conf-dir", str(file.parent), "check", "shop"]


def test_sigterm_ends_a_push_and_sigusr1_prints_its_status(
    kafka: Server, source: tuple[Server, str, Path], tmp_path: Path
) -> None:
    server, name, file = source
    change(server, name, 10, seed=4)
    Capture(load(file)).run(until_current=True)
    configure(file, servers=[kafka.url], topic=topic_of(name))
    process = subprocess.Popen(
        [*check_command(file)[:-2], "push", "shop"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        status: dict[str, Any] = {}
        deadline = time.monotonic() + 60
        while not (file.parent.parent / "data" / "meta" / "push-mq.lock").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.1)
        while time.monotonic() < deadline and not status.get("rows"):
            os.kill(process.pid, signal.SIGUSR1)
            assert process.stdout is not None
            status = json.loads(process.stdout.readline())
            time.sleep(0.2)
        assert status["subscriber"] == "mq" and status["rows"] > 0
        other = push(file.parent, "--until-empty")
        assert other.returncode == 1 and "another `cdc push`" in other.stderr
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        assert "messages with" in errors
    finally:
        process.kill()


@pytest.mark.long
def test_check_finds_brokers_that_do_not_answer_and_topics_that_are_missing(
    kafka: Server, source: tuple[Server, str, Path]
) -> None:
    server, name, file = source
    server.execute(f"INSERT INTO {name}.orders VALUES (1, 'a', 1, 1)")
    Capture(load(file)).run(until_current=True)

    def check() -> dict[str, str]:
        command = [*CDC, "--conf-dir", str(file.parent), "check", "shop", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.stdout, done.stderr
        return {
            finding["message"]: finding["level"]
            for finding in json.loads(done.stdout)["findings"]
            if finding["subject"] == "mq"
        }

    configure(file, servers=[f"{HOST}:{free_port()}"], topic=f"{name}_rest")
    ((message, level),) = check().items()
    assert message.startswith(f"no broker answers at {HOST}:") and level == "error"
    hashed = {"partitions": 3, "partition_hash": r".*\..*:$pk$"}
    configure(file, servers=[kafka.url], topic=f"{name}_rest", dynamic_topics=rf"{name}\..*", **hashed)
    levels = check()
    text = f"the topic {topic_of(name)} does not exist; the brokers create it when it is first used, with 1 partitions"
    assert levels == {
        f"1 brokers answer at {kafka.url}": "ok",
        f"{text}, and mq.partitions is 3": "error",
    }
    create_topic(kafka.url, topic_of(name), 3)
    assert check()[f"the topic {topic_of(name)} has 3 partitions"] == "ok"


@pytest.mark.long
def test_a_push_reads_the_store_of_another_machine(
    kafka: Server, source: tuple[Server, str, Path], tmp_path: Path
) -> None:
    """The push has a server's address and a token instead of a store; a kill of the server in between loses nothing."""
    server, name, file = source
    made = change(server, name, 30, seed=2)
    Capture(load(file)).run(until_current=True)
    served = with_tokens(load(file))
    with server_process(served, tmp_path) as process:
        client = client_config(served, tmp_path / "client", process.url, retry_for_s=60)
        configure(client.file, servers=[kafka.url], topic=topic_of(name), subscriber="apply")
        first = push(client.file.parent, "--until-empty", "--json")
        assert first.returncode == 0, first.stderr
        made += change(server, name, 30, seed=3)
        Capture(load(file)).run(until_current=True)
        process.stop(signal.SIGKILL)
        with process_of(client.file.parent, tmp_path / "push.log", "--until-empty") as pushing:
            time.sleep(3)
            process.start()
            assert pushing.wait(120) == 0, (tmp_path / "push.log").read_text()
    changes = [json.loads(record.value or b"") for record in records(kafka.url, topic_of(name))]
    rows = [row for change in changes if not change["isDdl"] for row in change["data"]]
    deleted = [change["type"] == "DELETE" for change in changes if not change["isDdl"] for _ in change["data"]]
    stored = [(int(row["id"]), None if gone else int(row["n"])) for row, gone in zip(rows, deleted, strict=True)]
    assert stored == made


@contextmanager
def process_of(conf: Path, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    process = start_push(conf, log, options)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)
