"""Sends messages to Kafka by librdkafka, and knows when all are acknowledged.

The producer is idempotent and waits for all replicas (``acks=all``), so that the client's own retries neither repeat a
message nor exchange two. After any failure it is closed and another one begins: with Kafka's transactions the brokers
then refuse what the old one still has on the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cdc.base.errors import CdcError, ConfigError, MessageTooLargeError, PeerUnavailableError, UnsupportedError
from cdc.base.log import get_logger
from cdc.base.units import human_bytes

if TYPE_CHECKING:
    from cdc.canal.mq.writer import QueueMessage
    from cdc.config import DestinationConfig

_POLL_S = 0.1
_CLOSE_S = 5.0
_QUEUE_KB = 65_536
"""Bytes that wait in the client: the memory that a push takes for them."""
_QUEUE_MESSAGES = 200_000
_log = get_logger(__name__)


class Sender(Protocol):
    """The methods of a producer that a push needs."""

    def begin(self) -> None: ...

    def send(self, messages: Sequence[QueueMessage]) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


def require_client() -> Any:
    """Returns the module ``confluent_kafka``. Raises ConfigError if it is not installed."""
    try:
        import confluent_kafka
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the package {error.name} is not installed", place="mq.servers", remedy="Install towpath[kafka]."
        ) from None
    return confluent_kafka


def client_settings(config: DestinationConfig) -> dict[str, Any]:
    """Returns librdkafka's properties that any client of the configured brokers has. Raises ConfigError."""
    mq, security = config.mq, config.mq.security
    client_settings: dict[str, Any] = {
        **mq.properties,
        "bootstrap.servers": ",".join(mq.servers),
        "client.id": f"towpath-{config.name}",
        "security.protocol": security.protocol,
    }
    if security.mechanism is not None:
        client_settings["sasl.mechanism"] = security.mechanism
        client_settings["sasl.username"] = security.user
        client_settings["sasl.password"] = security.password.text()
    for name, path in (
        ("ssl.ca.location", security.ca_file),
        ("ssl.certificate.location", security.certificate),
        ("ssl.key.location", security.key),
    ):
        if path is not None:
            client_settings[name] = str(path)
    return client_settings


def transactional_id(config: DestinationConfig) -> str | None:
    """Returns Kafka's transactional id of a destination's push; None without transactions."""
    mq = config.mq
    if not mq.transactions:
        return None
    return mq.transactional_id or f"towpath-{config.name}-{mq.subscriber}"


class KafkaSender:
    """A producer. Not safe in several threads at once. After an error only :meth:`abort` and :meth:`close` may
    follow."""

    def __init__(self, config: DestinationConfig, *, extra: Mapping[str, Any] | None = None) -> None:
        """Connects, and with transactions fences off every earlier producer of the same id. ``extra``: further
        properties, for tests. Raises ConfigError, PeerUnavailableError."""
        self._kafka = require_client()
        mq = config.mq
        self._max_bytes = mq.max_message_bytes
        self._timeout_s = mq.delivery_timeout
        self._id = transactional_id(config)
        self._failure: CdcError | None = None
        self._trouble: str | None = None
        timeout_ms = int(1000 * mq.delivery_timeout)
        settings = {
            **client_settings(config),
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": mq.compression,
            "message.max.bytes": mq.max_message_bytes,
            "message.timeout.ms": timeout_ms,
            "delivery.report.only.error": True,
            "partitioner": "murmur2_random",
            "queue.buffering.max.kbytes": _QUEUE_KB,
            "queue.buffering.max.messages": _QUEUE_MESSAGES,
            "error_cb": self._note_trouble,
            "on_delivery": self._failed,
            "logger": _LIBRARY_LOG,
            **(extra or {}),
        }
        settings.setdefault("linger.ms", 5)
        if self._id is not None:
            settings["transactional.id"] = self._id
            settings["transaction.timeout.ms"] = max(timeout_ms, 60_000)
        try:
            self._producer = self._kafka.Producer(settings)
        except self._kafka.KafkaException as error:
            raise ConfigError(f"Kafka's client refuses its properties: {_reason(error)}", place="mq") from None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"Kafka's client refuses its properties: {error}", place="mq.properties") from None
        self._servers = ", ".join(mq.servers)
        if self._id is not None:
            try:
                self._producer.init_transactions(min(self._timeout_s, 30.0))
            except self._kafka.KafkaException as error:
                trouble = self._translated(error)
                self.close()
                raise trouble from None

    def begin(self) -> None:
        """Begins a part: messages that :meth:`commit` makes certain."""
        if self._id is not None:
            self._call(self._producer.begin_transaction)

    def send(self, messages: Sequence[QueueMessage]) -> None:
        """Hands messages to the client, and waits while its queue is full. Raises MessageTooLargeError for a message
        that is larger than ``mq.max_message_bytes``; PeerUnavailableError, ConfigError, UnsupportedError for messages
        that could not be delivered."""
        produce, limit = self._producer.produce, self._max_bytes
        for message in messages:
            value, key = message.value, message.key
            if value is not None and len(value) + (0 if key is None else len(key)) > limit:
                raise self._too_large(message, len(value))
            options: dict[str, Any] = {}
            if message.partition is not None:
                options["partition"] = message.partition
            if message.headers is not None:
                options["headers"] = message.headers
            while True:
                try:
                    produce(message.topic, value, key, **options)
                    break
                except BufferError:
                    self._producer.poll(_POLL_S)
                    self._check()
                except self._kafka.KafkaException as error:
                    if error.args[0].code() == self._kafka.KafkaError.MSG_SIZE_TOO_LARGE:
                        raise self._too_large(message, len(value or b"")) from None
                    raise self._translated(error, f"table {message.table}, topic {message.topic}") from None
        self._producer.poll(0)
        self._check()

    def commit(self) -> None:
        """Waits until the brokers have acknowledged everything that was sent since :meth:`begin`. Raises what
        :meth:`send` raises."""
        if self._id is not None:
            end = time.monotonic() + self._timeout_s
            while True:
                try:
                    self._producer.commit_transaction(max(1.0, end - time.monotonic()))
                    break
                except self._kafka.KafkaException as error:
                    self._producer.poll(0)
                    self._check()
                    if error.args[0].retriable() and time.monotonic() < end:
                        continue
                    raise self._translated(error) from None
            self._producer.poll(0)
            self._check()
            return
        end = time.monotonic() + self._timeout_s + _CLOSE_S
        while self._producer.flush(_POLL_S):
            self._check()
            if time.monotonic() > end:
                raise PeerUnavailableError(
                    f"messages are not acknowledged within {self._timeout_s:g} s", place=f"Kafka at {self._servers}"
                )
        self._producer.poll(0)
        self._check()

    def abort(self) -> None:
        """Gives up what was not committed. Without transactions, part of it may have arrived."""
        purged = self._producer.purge
        try:
            purged(in_queue=True, in_flight=True, blocking=True)
            if self._id is not None:
                self._producer.abort_transaction(_CLOSE_S)
        except self._kafka.KafkaException as error:  # the next producer of the id aborts it
            _log.debug("transaction not aborted", reason=_reason(error))

    def close(self) -> None:
        """Ends the client. What was not committed is lost, and comes again from the store."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._producer.flush(_POLL_S)

    # --- failures

    def _call(self, function: Callable[[], Any]) -> None:
        try:
            function()
        except self._kafka.KafkaException as error:
            raise self._translated(error) from None

    def _check(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _failed(self, error: Any, message: Any) -> None:
        """Notes the first message that was not delivered."""
        if error is None or self._failure is not None:
            return
        if (
            error.code() == self._kafka.KafkaError._PURGE_QUEUE
            or error.code() == self._kafka.KafkaError._PURGE_INFLIGHT
        ):
            return
        if error.code() == self._kafka.KafkaError.MSG_SIZE_TOO_LARGE:
            value = message.value() or b""
            self._failure = MessageTooLargeError(
                f"the brokers refuse a message of {human_bytes(len(value))} ({_shown(value)})",
                place=f"topic {message.topic()}",
                remedy="Raise max.message.bytes of the topic (message.max.bytes of the brokers) to at least "
                f"mq.max_message_bytes, {self._max_bytes}. Nothing of the batch was acked.",
            )
            return
        self._failure = self._translated(
            self._kafka.KafkaException(error), f"topic {message.topic()}, partition {message.partition()}"
        )

    def _note_trouble(self, error: Any) -> None:
        text = error.str()
        if text != self._trouble:
            _log.warning("trouble with Kafka", reason=text)
        self._trouble = text

    def _too_large(self, message: QueueMessage, size: int) -> MessageTooLargeError:
        return MessageTooLargeError(
            f"a message of {size:,} bytes is larger than mq.max_message_bytes, which is {self._max_bytes:,}",
            place=f"table {message.table}, event at position {message.pos}, topic {message.topic}",
            remedy="Raise mq.max_message_bytes, and max.message.bytes of the topic to the same; or leave the table out "
            "by mq.filter. Nothing of the batch was acked.",
        )

    def _translated(self, error: Any, place: str | None = None) -> CdcError:
        """Returns the error of ours: whether another try helps is part of it."""
        kafka, code, text = self._kafka.KafkaError, error.args[0].code(), _reason(error)
        where = f"Kafka at {self._servers_text()}" if place is None else place
        if code in (kafka._UNKNOWN_PARTITION, kafka._UNKNOWN_TOPIC, kafka.UNKNOWN_TOPIC_OR_PART):
            return ConfigError(
                f"the topic or its partition does not exist: {text}",
                place=where,
                remedy="Create the topic with at least mq.partitions partitions, or let the brokers create topics "
                "(auto.create.topics.enable).",
            )
        if code in (kafka._FENCED, kafka.INVALID_PRODUCER_EPOCH, kafka._STATE) and self._id is not None:
            return PeerUnavailableError(
                f"another producer has taken over: {text}",
                place=f"transactional id {self._id}",
                remedy="See that no other push has this id; mq.transactional_id names another one.",
            )
        if code in (
            kafka.TOPIC_AUTHORIZATION_FAILED,
            kafka.CLUSTER_AUTHORIZATION_FAILED,
            kafka.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            kafka.TOPIC_EXCEPTION,
            kafka.SASL_AUTHENTICATION_FAILED,
            kafka.UNSUPPORTED_SASL_MECHANISM,
        ):
            of_id = code == kafka.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return ConfigError(
                text,
                place=where,
                remedy="Let the brokers' administrator allow it, or set mq.transactions: false."
                if of_id
                else "Let the brokers' administrator allow it, or correct mq.",
            )
        if code in (kafka.UNSUPPORTED_VERSION, kafka._UNSUPPORTED_FEATURE):
            return UnsupportedError(text, place=where, remedy="Use newer brokers, or set mq.transactions: false.")
        text = f"{text} ({self._trouble})" if self._trouble and self._trouble not in text else text
        remedy = None
        if self._id is not None and code in (kafka._TIMED_OUT, kafka.COORDINATOR_NOT_AVAILABLE):
            remedy = (
                "See that the brokers are reachable, and that their transaction.state.log.replication.factor and "
                "min.isr fit their number; mq.transactions: false does without transactions."
            )
        return PeerUnavailableError(text, place=where, remedy=remedy)

    def _servers_text(self) -> str:
        return getattr(self, "_servers", "mq.servers")


def _reason(error: Any) -> str:
    kafka_error = error.args[0]
    text = kafka_error.str() if hasattr(kafka_error, "str") else str(kafka_error)
    return str(text).strip().rstrip(".")


def _shown(value: bytes) -> str:
    """The beginning or the end of a message, where its table is."""
    text = value[:80] if value[:1] != b"{" else value[:60]
    return f"it begins with {text!r}"


class _Log:
    """Takes the lines that librdkafka logs."""

    def log(self, level: int, text: str, *values: Any) -> None:
        _log.debug("librdkafka", line=text % values if values else text)

    def __getattr__(self, name: str) -> Any:
        if name in ("debug", "info", "warning", "error", "critical"):
            return lambda text, *values: self.log(0, text, *values)
        raise AttributeError(name)


_LIBRARY_LOG = _Log()
