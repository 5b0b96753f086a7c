"""Checks Kafka for ``cdc check``: whether the brokers answer, and whether the topics fit the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError
from cdc.base.targets import split_table
from cdc.batches.subscribers import make_filter
from cdc.canal.mq.rules import Rules
from cdc.client import captured_tables, open_store
from cdc.source.findings import Finding, error, from_error, ok, warning

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

_TIMEOUT_S = 10.0
SUBJECT = "mq"


def examine(config: DestinationConfig) -> list[Finding]:
    """Returns the findings about the section ``mq``; none if nothing is pushed. Sends nothing."""
    from cdc.canal.mq.producer import client_settings, require_client  # PyArrow, for what is pushed alone
    from cdc.canal.mq.pusher import Pusher

    if not config.mq.servers:
        return []
    try:
        kafka = require_client()
        Pusher(config)  # reads the expressions
        settings = client_settings(config)
    except CdcError as trouble:
        return [from_error(SUBJECT, trouble)]
    from confluent_kafka.admin import AdminClient

    servers = ", ".join(config.mq.servers)
    try:
        admin = AdminClient({**settings, "socket.timeout.ms": int(1000 * _TIMEOUT_S), "log_level": 0})
        cluster = admin.list_topics(timeout=_TIMEOUT_S)
    except kafka.KafkaException as trouble:
        return [
            error(
                SUBJECT,
                f"no broker answers at {servers}: {trouble.args[0].str()}",
                "Correct mq.servers and mq.security, or start the brokers.",
            )
        ]
    except (ValueError, TypeError) as trouble:
        return [error(SUBJECT, f"Kafka's client refuses its properties: {trouble}", "Correct mq.properties.")]
    findings = [ok(SUBJECT, f"{len(cluster.brokers)} brokers answer at {servers}")]
    settings_of = _broker_settings(admin, cluster)
    topics, wrong = _topics(config)
    findings += wrong
    for topic in sorted(topics):
        findings += _topic(config, admin, cluster, topic, settings_of)
    return findings


def _topics(config: DestinationConfig) -> tuple[set[str], list[Finding]]:
    """The topics of the tables that capture knows, or the fixed one if it knows none; and what is wrong with them."""
    mq = config.mq
    assert mq.topic is not None
    rules = Rules(mq.topic, mq.dynamic_topics)
    store = open_store(config)
    try:
        tables = captured_tables(config, store) if store.exists() else []
        table_filter = make_filter(mq.filter)
        tables = [table for table in tables if table_filter is None or table_filter.matches(table)]
        topics = {rules.topic_of(*split_table(table)) for table in tables}
    except CdcError as trouble:  # the store, of which other findings tell more; or a table without a topic
        return {mq.topic}, [from_error(SUBJECT, trouble)]
    return topics or {mq.topic}, []


def _topic(config: DestinationConfig, admin: Any, cluster: Any, topic: str, broker: dict[str, str]) -> list[Finding]:
    """Returns what is wrong with a topic."""
    mq = config.mq
    topic_metadata = cluster.topics.get(topic)
    if topic_metadata is None:
        if broker.get("auto.create.topics.enable", "true") == "true":
            text = f"the topic {topic} does not exist; the brokers create it when it is first used"
            partitions = int(broker.get("num.partitions", "1"))
            if mq.partitions is not None and partitions < mq.partitions:
                return [
                    error(
                        SUBJECT,
                        f"{text}, with {partitions} partitions, and mq.partitions is {mq.partitions}",
                        f"Create it with {mq.partitions} partitions.",
                    )
                ]
            return [warning(SUBJECT, text, "Create it with the partitions and the retention that it is to have.")]
        return [
            error(
                SUBJECT,
                f"the topic {topic} does not exist, and the brokers create none",
                f"Create it with {mq.partitions or mq.partition + 1} partitions or more.",
            )
        ]
    findings = []
    needed = mq.partitions or mq.partition + 1
    if len(topic_metadata.partitions) < needed:
        findings.append(
            error(
                SUBJECT,
                f"the topic {topic} has {len(topic_metadata.partitions)} partitions, and the configuration needs "
                f"{needed}",
                "Add partitions to it, or lower mq.partitions.",
            )
        )
    limit = _settings(admin, "TOPIC", topic).get("max.message.bytes")
    if limit is not None and int(limit) < mq.max_message_bytes:
        findings.append(
            error(
                SUBJECT,
                f"the topic {topic} takes messages of {int(limit):,} bytes, and mq.max_message_bytes is "
                f"{mq.max_message_bytes:,}",
                f"Set max.message.bytes of the topic to {mq.max_message_bytes}, or lower mq.max_message_bytes.",
            )
        )
    return findings or [ok(SUBJECT, f"the topic {topic} has {len(topic_metadata.partitions)} partitions")]


def _broker_settings(admin: Any, cluster: Any) -> dict[str, str]:
    number = next(iter(cluster.brokers), None)
    return {} if number is None else _settings(admin, "BROKER", str(number))


def _settings(admin: Any, kind: str, name: str) -> dict[str, str]:
    """The settings of a topic or broker; none if this user may not read them."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(getattr(ResourceType, kind), name)
    try:
        (future,) = admin.describe_configs([resource], request_timeout=_TIMEOUT_S).values()
        return {key: str(entry.value) for key, entry in future.result(_TIMEOUT_S).items()}
    except (KafkaException, TimeoutError):
        return {}
