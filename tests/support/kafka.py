"""A real broker for tests of ``cdc push``: topics, and everything that a topic holds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

CDC = [sys.executable, "-m", "cdc"]


class Record(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def create_topic(servers: str, name: str, partitions: int, config: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(name, partitions, 1, config=config or {})]).values():
        future.result(30)


def records(servers: str, topic: str, *, committed: bool = True) -> list[Record]:
    """All records of a topic, by partition and offset. ``committed``: without those of aborted transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        records: list[Record] = []
        ended: set[int] = set()
        deadline = time.monotonic() + 60
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"{topic} has no end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
                continue
            records.append(
                Record(message.partition(), message.offset(), message.key(), message.value(), message.headers() or [])
            )
        return sorted(records)
    finally:
        consumer.close()


def configure(file: Path, **mq: Any) -> None:
    """Sets the section ``mq`` of a configuration file."""
    document = yaml.safe_load(file.read_text())
    document["mq"] = mq
    file.write_text(yaml.safe_dump(document))


def push(conf: Path, *options: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Runs ``cdc push shop`` to its end."""
    return subprocess.run(
        [*CDC, "--conf-dir", str(conf), "push", "shop", *options],
        capture_output=True,
        text=True,
        timeout=120,
        **kwargs,
    )


def start_push(conf: Path, log: Path, options: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            [*CDC, "--conf-dir", str(conf), "push", "shop", *options], stdout=subprocess.DEVNULL, stderr=output
        )
