"""The whole loop through a server: no client sees the folder of the store or of the meta."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdc.base.errors import ConfigError
from cdc.batches.manifest import TableResult
from cdc.batches.service import BatchService
from cdc.cli.main import main
from cdc.client import open_batches
from cdc.config import DestinationConfig, load
from cdc.lake import pipeline
from cdc.testing.servers import Server
from tests.support.apply import OWNER, Loop
from tests.support.capturing import capturing
from tests.support.server import ServerProcess, client_config, make_certificates, server_process, with_tokens

Cdc = Callable[..., str]


class Far:
    """A loop whose apply goes through a server: ``loop`` has the store, ``config`` is the client's."""

    def __init__(self, loop: Loop, server: ServerProcess, config: DestinationConfig) -> None:
        self.loop, self.server, self.config = loop, server, config

    def apply_all(self) -> list[TableResult]:
        """Merges and acks all batches."""
        all_results: list[TableResult] = []
        while (lease := pipeline.fetch(self.config, OWNER, wait_s=0)) is not None:
            results = pipeline.merge(self.config, lease)
            pipeline.finalize(self.config, lease, True, results)
            all_results += results
        return all_results


@pytest.fixture
def make(tmp_path: Path, mysql9: Server, database: Callable[[Server], str]) -> Iterator[Callable[..., Far]]:
    with_server = []

    def start(*, spark: str = "", transactions: int = 1000) -> Far:
        loop = Loop(
            tmp_path,
            mysql9,
            database(mysql9),
            overrides="DB.log: {mode: append}",
            **({"spark": spark} if spark else {}),
        )
        text = loop.config.file.read_text().replace(
            "batch: {max_wait_s: 0}", f"batch: {{max_wait_s: 0, max_transactions: {transactions}}}"
        )
        loop.config.file.write_text(text)
        tls = make_certificates(loop.config.file.parent)
        loop.config = with_tokens(load(loop.config.file), certificate=tls.certificate.name, key=tls.key.name)
        context = server_process(loop.config, tmp_path)
        server = context.__enter__()
        with_server.append(context)
        config = client_config(
            loop.config,
            tmp_path / "client",
            server.url,
            ca_file=str(tls.ca),
            stage=f"file://{tmp_path}/stage",
        )
        return Far(loop, server, config)

    yield start
    for context in with_server:
        context.__exit__(None, None, None)


@pytest.fixture
def cdc(capsys: pytest.CaptureFixture[str]) -> Cdc:
    """Runs a command of the client in this process, where Spark is warm. Returns its output."""

    def run(far: Far, command: str, *words: str) -> str:
        capsys.readouterr()
        code = main(["--conf-dir", str(far.config.file.parent), *command.split(), "shop", *words])
        said = capsys.readouterr()
        assert code == 0, said.err + said.out
        return said.out

    return run


TABLES = (
    "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(20))",
    "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(20))",
)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_command_works_through_the_server(make: Callable[..., Far], cdc: Cdc) -> None:
    far = make()
    loop = far.loop
    loop.sql(*TABLES, "INSERT INTO mirror VALUES (1, 'a'), (2, 'b'), (3, 'c')", "INSERT INTO log VALUES (1, 'x')")
    loop.capture()
    document = json.loads(cdc(far, "apply", "--until-empty", "--json"))
    assert [table["table"] for batch in document["batches"] for table in batch["tables"] if table["inserted"]]
    loop.require_equal("mirror")
    assert loop.changelog("log") == [("insert", 1)]

    loop.sql(
        "UPDATE mirror SET v = 'changed' WHERE id = 2",
        "DELETE FROM mirror WHERE id = 3",
        "ALTER TABLE mirror ADD n INT",
    )
    loop.sql("INSERT INTO mirror VALUES (4, 'd', 4)")
    loop.capture()
    cdc(far, "apply", "--until-empty")
    loop.require_equal("mirror")

    status = json.loads(cdc(far, "status", "--json"))
    assert {table["table"] for table in status["tables"]} == {f"{loop.db}.mirror", f"{loop.db}.log"}
    assert status["subscriptions"][0]["behind"]["transactions"] == 0
    assert status["store"]["there"] is True
    assert status["retention"]["disk"]["level"] in ("ok", "warn", "clean", "stop")

    with capturing(loop.config):
        taken = json.loads(cdc(far, "snapshot", f"{loop.db}.mirror", "--json"))
        assert taken["tables"][0]["rows"] == 3
        loop.require_equal("mirror")
        loop.sql("INSERT INTO mirror VALUES (5, 'e', 5)")
    loop.capture()
    cdc(far, "apply", "--until-empty")
    replayed = json.loads(cdc(far, "replay", f"{loop.db}.mirror", "--json"))
    assert replayed["tables"][0]["table"] == f"{loop.db}.mirror"
    loop.require_equal("mirror")
    assert loop.changelog("log") == [("insert", 1)]
    report = json.loads(cdc(far, "verify", "--json"))
    assert report["ok"] is True
    checked = json.loads(cdc(far, "check", "--json"))
    assert [finding["level"] for finding in checked["findings"] if finding["subject"] == "server"] == ["ok"]
    assert json.loads(cdc(far, "batch list", "--json"))["outstanding"] == []
    maintained = json.loads(cdc(far, "maintain", "--json"))
    assert maintained["removed"] == []
    unstaged = far.config.model_copy(update={"store": far.config.store.model_copy(update={"stage": None})})
    with pytest.raises(ConfigError, match=r"store\.stage is not set"):
        pipeline.snapshot(unstaged, [f"{loop.db}.mirror"])


@pytest.mark.timeout(400)
@pytest.mark.long
@pytest.mark.parametrize("kills", [2, 10])
def test_kills_of_the_server_under_a_running_apply(make: Callable[..., Far], seed: int, kills: int) -> None:
    """The server is killed and started again at random moments while batches are fetched, merged and acked."""
    far = make(transactions=5)
    loop, rng = far.loop, random.Random(seed)
    loop.sql(*TABLES)
    changes = []
    for number in range(12):
        changes += [
            f"INSERT INTO mirror VALUES ({number}, 'v{number}')",
            f"INSERT INTO log VALUES ({number}, 'v{number}')",
            f"UPDATE mirror SET v = 'w{number}' WHERE id = {rng.randrange(number + 1)}",
        ]
    loop.sql(*changes)
    loop.capture()
    stop = threading.Event()
    count = [0]

    def kill() -> None:
        while not stop.wait(rng.uniform(0.1, 1.5)) and count[0] < kills:
            far.server.stop(signal.SIGKILL)
            count[0] += 1
            far.server.start()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        far.apply_all()
    finally:
        stop.set()
        thread.join()
    far.apply_all()
    assert count[0] >= 1
    loop.require_equal("mirror")
    assert loop.changelog("log") == [("insert", number) for number in range(12)]
    batch_service = BatchService(loop.config)
    assert batch_service.outstanding() == []
    manifests = open_batches(far.config).acked_manifests()
    assert [manifest.after_seq for manifest in manifests[1:]] == [manifest.last_seq for manifest in manifests[:-1]]
