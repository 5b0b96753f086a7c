"""The stores of several servers: where they begin, that they have the same transactions, and when one is set aside."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cdc.base.errors import ConfigError, CutOffError, SourceRefusedError
from cdc.batches.service import BatchService
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.meta import open_meta
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import HOST, USER, Server
from tests.support.cluster import until

Database = Callable[[Server], str]


class Pair:
    """Two servers with stores of their own, as two machines would have them."""

    def __init__(self, folder: Path, source: Server, name: str, zookeeper: Server) -> None:
        self.source, self.name = source, name
        root = f"/otter/{secrets.token_hex(4)}"
        self.one, self.two = (self._config(folder, number, zookeeper, root) for number in (1, 2))
        source.execute(f"CREATE TABLE `{name}`.t (id INT PRIMARY KEY)")

    def _config(self, folder: Path, number: int, zookeeper: Server, root: str) -> DestinationConfig:
        conf = folder / str(number) / "conf"
        conf.mkdir(parents=True)
        document: dict[str, Any] = {
            "source": {
                "url": f"mysql://{USER}@{HOST}:{self.source.port}",
                "password_env": "TOWPATH_TEST_PASSWORD",
                "server_id": 72400 + number,
                "start": "now",
            },
            "tables": {"include": [rf"{self.name}\..*"]},
            "store": {"path": "data/store"},
            "meta": {"kind": "zookeeper", "hosts": zookeeper.url, "root": root, "path": "data/meta"},
            "batch": {"max_transactions": 3, "max_wait_s": 0},
            "apply": {"target": "./lake"},
            "server": {"canal": {"enabled": True}, "ha": {"address": f"server-{number}.example"}},
        }
        # Canal's port of this test listens nowhere.
        document["server"]["canal"] |= {"host": f"server-{number}.example", "password_env": "TOWPATH_TEST_PASSWORD"}
        (conf / "shop.yaml").write_text(yaml.safe_dump(document))
        return load(conf / "shop.yaml")

    def insert(self, first: int, count: int) -> None:
        self.source.execute(*(f"INSERT INTO `{self.name}`.t VALUES ({n})" for n in range(first, first + count)))

    def source_files(self) -> list[str]:
        """The binlog files of the source."""
        with self.source.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            return [row[0] for row in cursor.fetchall()]

    def capture(self, config: DestinationConfig) -> None:
        Capture(config).run(until_current=True)


@pytest.fixture(scope="module")
def source() -> Iterator[Server]:
    """A server whose binlogs may be purged."""
    with Server("mysql9") as server:
        yield server


@pytest.fixture
def pair(tmp_path: Path, source: Server, database: Database, zookeeper: Server) -> Pair:
    return Pair(tmp_path, source, database(source), zookeeper)


def seqs(config: DestinationConfig, after: int = 0) -> list[int]:
    """The transactions in a store."""
    parts = [entry[entry["length"] > 0]["seq"] for entry in StoreReader(config.store.path).all_entries(after)]
    return [int(seq) for seq in np.concatenate(parts)] if parts else []


def take(config: DestinationConfig, subscriber: str) -> int:
    """Gets a batch and acks it; returns how many transactions it had."""
    with open_meta(config) as meta:
        service = BatchService(config, meta=meta)
        lease = service.get("test", subscriber=subscriber)
        if lease is None:
            return 0
        service.ack(lease.batch, lease.token, subscriber=subscriber)
        return lease.manifest.transactions


def test_a_second_server_begins_at_the_oldest_reader_with_the_same_transactions(pair: Pair) -> None:
    pair.capture(pair.one)
    pair.insert(0, 8)
    pair.capture(pair.one)
    assert take(pair.one, "slow") == 3 and take(pair.one, "fast") == 3 and take(pair.one, "fast") == 3
    with open_meta(pair.one) as meta:
        oldest = meta.cursor("slow")
    pair.capture(pair.two)
    beginning = StoreReader(pair.two.store.path).beginning()
    assert beginning is not None and (beginning.seq, beginning.reason) == (oldest, "started again")
    assert seqs(pair.two) == seqs(pair.one, oldest) and len(seqs(pair.two)) == 5
    assert take(pair.two, "slow") == 3 and take(pair.two, "slow") == 2
    assert take(pair.two, "fast") == 2
    # The first server goes on with its own store.
    pair.insert(8, 2)
    pair.capture(pair.one)
    assert len(seqs(pair.one)) == 10 and take(pair.one, "slow") == 2 and take(pair.one, "fast") == 2
    assert not pair.one.store.path.with_name("store.aside").exists()


def test_without_readers_a_second_server_begins_where_the_first_one_did(pair: Pair) -> None:
    pair.capture(pair.one)
    pair.insert(0, 4)
    pair.capture(pair.two)
    pair.capture(pair.one)
    assert seqs(pair.two) == seqs(pair.one) and len(seqs(pair.one)) == 4


def test_a_store_that_begins_behind_a_reader_is_set_aside(pair: Pair) -> None:
    pair.capture(pair.one)
    pair.insert(0, 6)
    pair.capture(pair.one)
    assert take(pair.one, "fast") == 3
    pair.capture(pair.two)
    assert len(seqs(pair.two)) == 3
    folder = pair.two.store.path
    older = [folder.with_name(name) for name in ("store.aside", "store.removed-0123abcd", "store.removed-mine")]
    for removed in older:  # of an earlier time, of a process that was killed while it removed it, and somebody else's
        removed.mkdir()
        (removed / "file").touch()
    assert take(pair.one, "late") == 3  # a new reader begins at the first transaction of the leader's store
    with open_meta(pair.one) as meta:
        meta.update_cursor("late", StoreReader(pair.one.store.path).beginning().seq)  # type: ignore[union-attr]
    pair.capture(pair.two)
    assert seqs(pair.two) == seqs(pair.one) and len(seqs(pair.two)) == 6
    aside = folder.with_name("store.aside")
    assert StoreReader(aside).last_seq() is not None and not (aside / "file").exists()
    until(
        lambda: {folder_left.name for folder_left in folder.parent.glob("store.removed*")} == {"store.removed-mine"}, 30
    )


def test_a_store_whose_continuation_was_purged_is_set_aside(pair: Pair) -> None:
    pair.capture(pair.one)
    pair.insert(0, 3)
    pair.capture(pair.one)
    pair.capture(pair.two)
    assert take(pair.two, "reader") == 3
    pair.source.execute("FLUSH BINARY LOGS")
    pair.insert(3, 3)
    pair.capture(pair.two)
    assert take(pair.two, "reader") == 3
    pair.insert(6, 1)
    newest = pair.source_files()[-1]
    pair.source.execute(f"PURGE BINARY LOGS TO '{newest}'")
    pair.capture(pair.one)
    assert len(seqs(pair.one)) == 1 and take(pair.one, "reader") == 1
    assert len(seqs(pair.two)) == 6


def test_a_reader_whose_position_was_purged_is_refused_and_others_go_on(pair: Pair) -> None:
    pair.capture(pair.one)
    pair.insert(0, 6)
    pair.capture(pair.one)
    assert take(pair.one, "slow") == 3
    pair.source.execute("FLUSH BINARY LOGS")
    pair.insert(6, 3)
    pair.capture(pair.one)
    while take(pair.one, "fast"):
        pass
    pair.source.execute(f"PURGE BINARY LOGS TO '{pair.source_files()[-1]}'")
    pair.insert(9, 1)
    pair.capture(pair.two)
    assert take(pair.two, "fast") == 1
    with pytest.raises(CutOffError, match="behind the cursor"):
        take(pair.two, "slow")
    # With no reader whose position is there, capture says what the source has.
    pair.source.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    pair.source.execute(f"PURGE BINARY LOGS TO '{pair.source_files()[-1]}'")
    pair.two.store.path.rename(pair.two.store.path.with_name("lost"))
    with pytest.raises(SourceRefusedError, match="was purged"):
        pair.capture(pair.two)


def test_two_servers_cannot_share_a_store(pair: Pair) -> None:
    pair.capture(pair.one)
    shared = pair.two.model_copy(update={"store": pair.one.store})
    with pytest.raises(ConfigError, match=r"belongs to the server 'server-1\.example'.*a store\.path of its own"):
        pair.capture(shared)
