"""Resolves the secrets that a configuration names: passwords, tokens and keys, and Airflow's connections.

The configuration holds only the names of their places (:mod:`cdc.config.secret_source`). A secret is read when it is
used, and never reaches a message or a log. Every error names the key and says what to do.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote, urlsplit

from cdc.base.errors import ConfigError, SourceUnavailableError, StorageError
from cdc.config.alarms import MailConfig, WebhookConfig
from cdc.config.apply import ApplyConfig
from cdc.config.metrics import MetricsConfig
from cdc.config.s3 import S3Config
from cdc.config.secret_source import MAKE_ONE, SecretSource
from cdc.config.server import CanalConfig, TokenConfig
from cdc.config.source import SourceConfig
from cdc.config.store import EncryptionConfig, StandbyConfig, StoreConfig
from cdc.disk.encryption.keys import KEY_BYTES, KeySources

_LEAST_SECRET_BYTES = 16


@dataclass(frozen=True)
class Credentials:
    """A user and its password, which ``repr`` does not show."""

    user: str
    password: str = field(repr=False)


ConnectionLookup = Callable[[str], Credentials]
"""Returns user and password of an Airflow connection by its id; the user is empty if the connection names none. Raises
ConfigError."""


def source_credentials(source: SourceConfig) -> Credentials:
    """Returns the user and the password for the source, read anew at each call. The password is empty if the
    configuration names none. Raises ConfigError; SourceUnavailableError if the command fails that prints the password.
    """
    if source.connection is not None:
        return Credentials(source_user(source), _lookup_connection(source.connection).password)
    if source._password is not None:
        return Credentials(source.user, source._password)
    return Credentials(source.user, source.password.text() or "")


def source_user(source: SourceConfig) -> str:
    """Returns the user for the source. Raises ConfigError."""
    user = "" if source.connection is None else _lookup_connection(source.connection).user
    return user or source.user


def hash_key(apply: ApplyConfig) -> bytes:
    """Returns the key of the policy ``hash``, without white space around it. Raises ConfigError."""
    key = apply.hash_key.text()
    if key is None:
        raise ConfigError(
            "a column is to be hashed, and no key is configured",
            place="apply.columns",
            remedy="Name it with apply.hash_key_env or apply.hash_key_file.",
        )
    if not key.strip():
        raise apply.hash_key.error("the key of hash is empty")
    return key.strip().encode()


def standby_secret(standby: StandbyConfig) -> bytes | None:
    """Returns the secret of master and standby, without white space around it; None if the configuration names none.
    Raises ConfigError."""
    secret = standby.secret.content()
    if secret is None:
        return None
    secret = secret.strip()
    if len(secret) < _LEAST_SECRET_BYTES:
        raise standby.secret.error(
            f"the secret has {len(secret)} bytes; at least {_LEAST_SECRET_BYTES} are needed", MAKE_ONE
        )
    return secret


def encryption_keys(encryption: EncryptionConfig) -> KeySources | None:
    """Returns the keys that the configuration names for files, which are read at their use; None if it names none."""
    sources = [
        old_key.key.below(f"store.encryption.old_keys.{number}", encryption.key.what)
        for number, old_key in enumerate(encryption.old_keys)
    ]
    if not encryption.key.is_given and not sources:
        return None
    current = partial(_key, encryption.key) if encryption.key.is_given else None
    return KeySources(encryption.model_dump_json(), current, tuple(partial(_key, source) for source in sources))


def _key(source: SecretSource) -> bytes:
    """Returns the 32 bytes of a key. Raises ConfigError; StorageError if the command fails that prints the key."""
    try:
        key = bytes.fromhex((source.text() or "").strip())
    except SourceUnavailableError as error:
        raise StorageError(error.message, place=error.place, remedy=error.remedy) from None
    except ValueError:  # its text would repeat the key
        key = b""
    if len(key) != KEY_BYTES:
        raise source.error(f"the key is not {2 * KEY_BYTES} hexadecimal digits", MAKE_ONE)
    return key


def server_token(store: StoreConfig) -> str:
    """Returns the token for the server that has the store. Raises ConfigError."""
    return _token(store.token)


def subscriber_token(subscriber: str, token: TokenConfig) -> str:
    """Returns the token of a subscriber, for the server. Raises ConfigError."""
    return _token(token.token.below(f"server.tokens.{subscriber}", f"the token of {subscriber}"))


def role_token(role: str, token: TokenConfig) -> str:
    """Returns the token of a role, for the server and its clients. Raises ConfigError."""
    return _token(token.token.below(f"server.roles.{role}", f"the token of the {role}"))


def _token(source: SecretSource) -> str:
    """Returns a token that can be a header of HTTP. Raises ConfigError."""
    token = (source.text() or "").strip()
    if len(token) < _LEAST_SECRET_BYTES:
        raise source.error(
            f"the token has {len(token)} characters; at least {_LEAST_SECRET_BYTES} are needed", MAKE_ONE
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise source.error("the token has other characters than letters, digits and signs of ASCII", MAKE_ONE)
    return token


def canal_password(canal: CanalConfig) -> str | None:
    """Returns the password of Canal's clients; None if they need none. Raises ConfigError."""
    password = canal.password.text()
    if password is not None and not password:
        raise canal.password.error("the password of Canal's clients is empty")
    return password


def push_credentials(metrics: MetricsConfig) -> Credentials | None:
    """Returns the user and the password for the Pushgateway; None if the configuration names none. Raises
    ConfigError."""
    return _credentials(metrics.push_user, metrics.push_password)


def mail_credentials(mail: MailConfig) -> Credentials | None:
    """Returns the user and the password for the SMTP server; None if the configuration names none. Raises
    ConfigError."""
    return _credentials(mail.user, mail.password)


def _credentials(user: str | None, password: SecretSource) -> Credentials | None:
    return None if user is None else Credentials(user, password.text() or "")


def webhook_secret(webhook: WebhookConfig) -> bytes | None:
    """Returns the secret that signs the alarms of a webhook; None if the configuration names none. ``whsec_`` and
    base64 after it stand for bytes, as standardwebhooks.com says. Raises ConfigError."""
    text = webhook.secret.text()
    if text is None:
        return None
    text = text.strip()
    try:
        secret = b64decode(text.removeprefix("whsec_"), validate=True) if text.startswith("whsec_") else text.encode()
    except ValueError:  # its text would repeat the secret
        secret = b""
    if len(secret) < _LEAST_SECRET_BYTES:
        raise webhook.secret.error(
            f"the secret is no text of at least {_LEAST_SECRET_BYTES} bytes, or base64 of them after whsec_", MAKE_ONE
        )
    return secret


@dataclass(frozen=True)
class AccessKey:
    """An access key of S3; ``repr`` shows its id only."""

    id: str
    secret: str = field(repr=False)
    token: str | None = field(repr=False, default=None)


def s3_access_key(s3: S3Config) -> AccessKey | None:
    """Returns the access key; None if the configuration names none. Raises ConfigError."""
    if s3.access_key_id is None:
        return None
    secret = s3.secret_access_key.text() or ""
    return AccessKey(s3.access_key_id, secret.strip(), s3.session_token.text())


# --- Airflow connections


def connections_from_environment(connection: str) -> Credentials:
    """Looks up an Airflow connection in ``AIRFLOW_CONN_<ID>``, as a URL or as JSON. Raises ConfigError."""
    name = f"AIRFLOW_CONN_{connection.upper()}"
    text = os.environ.get(name)
    if text is None:
        raise ConfigError(
            f"the Airflow connection {connection!r} is not known outside Airflow",
            place="source.connection",
            remedy=f"Set {name}, or use password_env or password_file.",
        )
    try:
        if text.lstrip().startswith("{"):
            fields = json.loads(text)
            return Credentials(str(fields.get("login") or ""), str(fields.get("password") or ""))
        parts = urlsplit(text)
        return Credentials(unquote(parts.username or ""), unquote(parts.password or ""))
    except ValueError:
        # The text itself holds the password, so the message must not repeat any of it.
        raise ConfigError(
            "is neither a URL nor a JSON object",
            place=name,
            remedy="Write it as Airflow's documentation of connections says.",
        ) from None


_lookup_connection: ConnectionLookup = connections_from_environment


@contextmanager
def look_up_connections_with(lookup: ConnectionLookup) -> Iterator[None]:
    """Makes this process look up Airflow connections with ``lookup`` while the context lasts.

    ``cdc.airflow.connections`` uses it inside a task, where Airflow itself can be asked. Otherwise a process knows only
    the connections in its environment.
    """
    global _lookup_connection
    before, _lookup_connection = _lookup_connection, lookup
    try:
        yield
    finally:
        _lookup_connection = before
