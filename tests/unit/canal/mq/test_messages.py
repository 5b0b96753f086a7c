"""Messages of every format against a slow writer, for every type of each server; and against golden files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cdc
from cdc.canal.mq.definitions import Format, MessageOptions
from cdc.canal.mq.rules import Rules
from cdc.canal.mq.writer import MessageWriter, QueueMessage
from tests.support.canal_proto import parsed
from tests.support.mq_reference import envelopes, flat_messages, partition_of
from tests.unit.canal.test_entries import KINDS, encoder, entries_of

GOLDEN = Path(__file__).parents[3] / "golden"
BY_KEY = Rules("rest", r".*\..*", partitions=3, partition_hash=r".*\..*:$pk$")
pytestmark = pytest.mark.timeout(900)
"""Compiling all kernels of messages takes two minutes of CPU time."""

RULES = (
    Rules("rest"),
    Rules("rest", partition=2),
    BY_KEY,
    Rules("rest", partitions=5, partition_hash=r".*\..*:id^txt", database_hash=False),
    Rules("rest", partitions=5, partition_hash=r"shop\..*"),
)


def written(kind: str, form: Format, rules: Rules, **options: Any) -> list[QueueMessage]:
    settings = {"name": "shop", **options}
    writer = MessageWriter(MessageOptions(format=form, rules=rules, **settings), max_bytes=4000)
    messages: list[QueueMessage] = []
    entry_encoder = encoder(kind)
    while (taken := entry_encoder.take(12000)) is not None:
        for some in writer.messages(taken, 77):
            messages += some
    return messages


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rules", RULES)
def test_flat_messages(kind: str, rules: Rules) -> None:
    messages = written(kind, "canal-json", rules)
    expected = list(flat_messages(entries_of(encoder(kind)), 77, rules))
    assert len(messages) == len(expected) >= 7
    for message, (topic, part, value) in zip(messages, expected, strict=True):
        shown = json.loads(message.value or b"")
        assert shown.pop("ts") > 1_700_000_000_000
        assert shown == value
        assert list(shown) == sorted(shown)
        assert (message.topic, message.partition, message.key) == (topic, part, None)
        assert message.rows == len(value["data"] or ())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("precise", "tombstones"), [(True, True), (False, False)])
def test_envelopes(kind: str, precise: bool, tombstones: bool) -> None:
    messages = written(
        kind, "debezium-json", Rules("rest"), decimals="precise" if precise else "string", tombstones=tombstones
    )
    expected = list(envelopes(entries_of(encoder(kind)), precise=precise, tombstones=tombstones))
    assert len(messages) == len(expected) >= 7
    seen = set()
    for message, (key, value, header) in zip(messages, expected, strict=True):
        assert (message.key and json.loads(message.key)) == key
        assert (message.headers and [(name, json.loads(raw)) for name, raw in message.headers]) == (header and [header])
        assert message.partition == (None if key else 0)
        if value is None:
            assert message.value is None
            seen.add("tombstone")
            continue
        shown = json.loads(message.value or b"")
        assert shown["source"].pop("version") == cdc.__version__
        times = [shown.pop(name) for name in ("ts_ms", "ts_us", "ts_ns")]
        assert times[0] == times[1] // 1000 and times[1] * 1000 == times[2] > 1_700_000_000_000_000_000
        assert shown == value
        seen.add(shown["op"])
    assert seen >= {"c", "u", "d"} | ({"tombstone"} if tombstones else set())


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
@pytest.mark.parametrize("rules", RULES)
def test_packets_have_the_entries_in_their_partitions(kind: str, rules: Rules) -> None:
    entries = [entry for entry in entries_of(encoder(kind)) if entry.entry_type == 2]
    expected: dict[int, list[tuple[int, bytes]]] = {}
    for entry in entries:
        change = parsed("RowChange", entry.store_value)
        if change.is_ddl:
            part = 0 if rules.partition_hash else rules.partition
            expected.setdefault(part, []).append((entry.header.logfile_offset, b""))
        for row in change.row_datas:
            part = rules.partition if rules.partition_hash is None else partition_of(rules, entry, row)
            expected.setdefault(part, []).append((entry.header.logfile_offset, row.SerializeToString()))
    by_partition: dict[int, list[tuple[int, bytes]]] = {}
    for message in written(kind, "canal-protobuf", rules):
        packet = parsed("Packet", message.value or b"")
        assert (packet.type, packet.version, message.key) == (7, 1, None)
        body = parsed("Messages", packet.body)
        assert body.batch_id == 77
        assert len(message.value or b"") <= 4000 or len(body.messages) == 1
        for raw in body.messages:
            entry = parsed("Entry", raw)
            change = parsed("RowChange", entry.store_value)
            assert message.partition is not None
            rows = by_partition.setdefault(message.partition, [])
            if change.is_ddl:
                rows.append((entry.header.logfile_offset, b""))
            rows += [(entry.header.logfile_offset, row.SerializeToString()) for row in change.row_datas]
    assert by_partition == expected


def without_times(messages: list[QueueMessage]) -> Iterator[dict[str, Any]]:
    for message in messages:
        value: Any = None if message.value is None else json.loads(message.value)
        if value is not None:
            for name in ("ts", "ts_ms", "ts_us", "ts_ns"):
                value.pop(name, None)
            if "source" in value:
                value["source"].pop("version")
        yield {
            "topic": message.topic,
            "partition": message.partition,
            "key": None if message.key is None else message.key.decode(),
            "headers": message.headers and [[name, raw.decode()] for name, raw in message.headers],
            "value": value,
        }


@pytest.mark.parametrize("form", ["canal-json", "canal-protobuf", "debezium-json"])
def test_the_golden_file(form: Format) -> None:
    """The file was made once; what consumers read must not change."""
    file = GOLDEN / f"mq-{form}-v1.jsonl"
    messages = written("mysql9", form, BY_KEY)
    if form == "canal-protobuf":
        lines = [
            {"topic": message.topic, "partition": message.partition, "value": (message.value or b"").hex()}
            for message in messages
        ]
    else:
        lines = list(without_times(messages))
    text = "".join(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n" for line in lines)
    if os.environ.get("TOWPATH_GOLDEN_WRITE"):
        file.write_text(text)
    assert text == file.read_text()


def test_entries_larger_than_the_output_are_written() -> None:
    """The output grows until it holds the messages of an entry."""
    settings: dict[str, Any] = {"name": "shop", "format": "canal-json", "rules": Rules("rest")}
    writer = MessageWriter(MessageOptions(**settings), max_bytes=1 << 20)
    writer._out = writer._out[:64].copy()
    entry_encoder = encoder("mysql9")
    messages: list[QueueMessage] = []
    while (taken := entry_encoder.take(1 << 22)) is not None:
        for some in writer.messages(taken, 77):
            messages += some
    whole = written("mysql9", "canal-json", Rules("rest"))
    assert list(without_times(messages)) == list(without_times(whole))
