"""``mq``: where the changes of this destination are pushed to, and in what form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cdc.base.patterns import PatternError, TablePattern
from cdc.config.secret_source import Secret
from cdc.config.values import AddressText, Doc, DurationS, FilePath, FilledText, Section, Whole

_OWN_PROPERTIES = frozenset(
    {
        "bootstrap.servers",
        "metadata.broker.list",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "transactional.id",
        "message.max.bytes",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "delivery.report.only.error",
        "partitioner",
        "security.protocol",
        "queuing.strategy",
        "retries",
        "message.send.max.retries",
        "enable.gapless.guarantee",
        "dr_cb",
        "dr_msg_cb",
        "compression.type",
        "compression.codec",
        "client.id",
    }
)
_OF_SECURITY = re.compile(r"(sasl|ssl)\..*|.*(password|secret|token).*")


class MqSecurityConfig(Section):
    """Connection to the brokers: TLS, and the login by SASL."""

    protocol: Annotated[
        Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"],
        Doc(
            choices={
                "plaintext": "neither TLS nor a login",
                "ssl": "TLS",
                "sasl_plaintext": "a login without TLS",
                "sasl_ssl": "TLS and a login",
            }
        ),
    ] = "plaintext"
    """How the connection is protected."""
    mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None,
        Doc(
            choices={
                "PLAIN": "the password is sent as it is",
                "SCRAM-SHA-256": "a proof of the password is sent",
                "SCRAM-SHA-512": "the same, with a longer digest",
            }
        ),
    ] = None
    """Mechanism of the login."""
    user: FilledText | None = None
    """User of the login."""
    password_env: FilledText | None = None
    """Environment variable that holds the user's password."""
    password_file: Annotated[FilePath | None, Doc(instead_of="password_env")] = None
    """File whose first line is the user's password. A relative path is taken from the folder of this file."""
    ca_file: FilePath | None = None
    """File with the certificates of the CA that has signed the brokers' certificates (PEM); null: those of the machine.
    A relative path is taken from the folder of this file."""
    certificate: FilePath | None = None
    """File with this client's certificate (PEM), if the brokers ask for one. A relative path is taken from the folder
    of this file."""
    key: FilePath | None = None
    """File with the private key of `certificate` (PEM, without a password). A relative path is taken from the folder of
    this file."""

    password: ClassVar = Secret("mq.security", "the password for Kafka")

    def _contradictions(self) -> Iterator[str]:
        login = self.protocol.startswith("sasl")
        parts = {
            "mechanism": self.mechanism is not None,
            "user": self.user is not None,
            "password_env": self.password.is_given,
        }
        for name, is_complete in parts.items():
            if login != is_complete:
                yield (
                    f"protocol {self.protocol} needs {name}"
                    if login
                    else f"{name} has no effect with protocol {self.protocol}; use sasl_ssl"
                )
        if (self.certificate is None) != (self.key is None):
            yield "certificate and key belong together; give both, or neither"
        if not self.protocol.endswith("ssl") and (self.ca_file is not None or self.certificate is not None):
            yield f"ca_file and certificate have no effect with protocol {self.protocol}; use sasl_ssl or ssl"


class MqConfig(Section):
    """The messages that `cdc push` sends to Kafka. It needs the package `towpath[kafka]`."""

    servers: Annotated[list[AddressText], Doc(example=["kafka1.example:9092", "kafka2.example:9092"])] = Field(
        default=[]
    )
    """Brokers at which the others are found. An empty list: nothing is pushed."""
    format: Annotated[
        Literal["canal-json", "canal-protobuf", "debezium-json"],
        Doc(
            choices={
                "canal-json": "Canal's flat messages, as JSON",
                "canal-protobuf": "Canal's packets, as protobuf",
                "debezium-json": "Debezium's envelopes, as JSON",
            }
        ),
    ] = "canal-json"
    """Form of the messages."""
    topic: Annotated[FilledText | None, Doc(example="shop")] = None
    """Topic of what `dynamic_topics` does not match."""
    dynamic_topics: Annotated[FilledText | None, Doc(example=r".*\..*")] = None
    """Canal's expressions for a topic by table or database, separated by commas: `expression` names the topic after
    what it matches, `topic:expression` names it."""
    partition: Annotated[Whole, Doc(instead_of="partition_hash")] = Field(default=0, ge=0)
    """Partition of all messages without `partition_hash`; in `debezium-json` of those of tables without a primary
    key."""
    partitions: Annotated[Whole | None, Doc(example=6)] = Field(default=None, ge=1)
    """Number of partitions over which `partition_hash` spreads. The topics need at least as many."""
    partition_hash: Annotated[FilledText | None, Doc(example=r".*\..*:$pk$")] = None
    """Canal's expressions for a partition, separated by commas: `expression:$pk$` by the primary key,
    `expression:id^name` by columns, `expression` by the table's name. Tables that none matches have partition 0."""
    database_hash: bool = True
    """Whether the database's name takes part in the hash of `partition_hash`, as in Canal."""
    subscriber: FilledText = "mq"
    """Name of the subscription that keeps how far the messages are sent."""
    filter: Annotated[FilledText | None, Doc(example=r"shop\.(orders|items)")] = None
    """Regular expression that must match the whole `db.table` of a table whose changes are sent; null: all."""
    ddl: bool = True
    """Whether DDL statements are sent, in Canal's formats. `debezium-json` has no message for them."""
    tombstones: Annotated[bool, Doc(only_with="format: debezium-json")] = True
    """Whether a message without a value follows each deletion, so that compacted topics forget the key."""
    decimals: Annotated[
        Literal["precise", "string"],
        Doc(
            choices={"precise": "the bytes of the unscaled number", "string": "its text"},
            only_with="format: debezium-json",
        ),
    ] = "precise"
    """Form of a DECIMAL."""
    time_zone: FilledText = "UTC"
    """Time zone in which Canal's formats write a TIMESTAMP. Canal takes that of its machine."""
    transactions: bool = True
    """Whether messages are sent in Kafka's transactions, so that a killed or paused process cannot send old messages
    after newer ones. Consumers with `isolation.level=read_committed` then never see an unfinished part."""
    transactional_id: FilledText | None = None
    """Kafka's `transactional.id`, which no other producer may have; null: `towpath-DEST-SUBSCRIBER`."""
    compression: Annotated[
        Literal["none", "gzip", "snappy", "lz4", "zstd"],
        Doc(
            choices={
                "none": "no compression",
                "gzip": "small messages, much CPU time",
                "snappy": "little CPU time",
                "lz4": "little CPU time",
                "zstd": "small messages; brokers since Kafka 2.1 know it",
            }
        ),
    ] = "none"
    """Compression of what is sent."""
    max_message_bytes: Whole = Field(default=1_000_000, ge=1000, le=1_000_000_000)
    """Largest message. A larger one ends the push with an error. At most `max.message.bytes` of the topics."""
    delivery_timeout: DurationS = 120.0
    """Time after which a message that the brokers have not acknowledged is a failure: the batch is rolled back, and
    sent again."""
    metrics_port: Whole | None = Field(default=None, ge=1, le=65535)
    """Port at which `cdc push` serves `/metrics` and `/health`, at `metrics.host`; null means that it serves neither.
    `cdc push --metrics-port` takes precedence."""
    security: MqSecurityConfig = MqSecurityConfig()
    properties: Annotated[dict[str, str | int | float | bool], Doc(example={"linger.ms": 20})] = Field(default={})
    """Further properties of librdkafka. Those that other keys set, and secrets, are refused."""

    @property
    def lock_name(self) -> str:
        """The file beside the meta whose lock a push holds."""
        return f"push-{self.subscriber}.lock"

    def _contradictions(self) -> Iterator[str]:
        if not self.servers:
            keys = sorted(self.model_fields_set - {"servers"})
            if keys:
                yield f"{keys[0]} has no effect without servers; add servers: [HOST:PORT]"
            return
        if self.topic is None:
            yield "topic is missing: it is for what dynamic_topics does not match"
        if self.partition_hash is not None and self.partitions is None:
            yield "partition_hash needs partitions, the number over which it spreads"
        if self.partition_hash is None and self.partitions is not None:
            yield "partitions has no effect without partition_hash"
        if self.partition_hash is not None and "partition" in self.model_fields_set:
            yield "partition has no effect with partition_hash; remove one of them"
        of_debezium = {"tombstones", "decimals"} & self.model_fields_set
        of_canal = {"ddl", "time_zone"} & self.model_fields_set
        if self.format == "debezium-json" and of_canal:
            yield f"{min(of_canal)} has no effect with format debezium-json"
        if self.format != "debezium-json" and of_debezium:
            yield f"{min(of_debezium)} has no effect with format {self.format}"
        if self.transactional_id is not None and not self.transactions:
            yield "transactional_id has no effect with transactions: false"
        for name in self.properties:
            if name in _OWN_PROPERTIES or _OF_SECURITY.fullmatch(name):
                yield f"properties: {name} is set by other keys of mq; remove it"
        if self.filter is not None:
            try:
                TablePattern(self.filter)
            except PatternError as error:
                yield f"filter {error}"
