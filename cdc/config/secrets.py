"""Resolves the secrets that a configuration names: in the environment, in a file, or in an Airflow connection.

The configuration holds only the names. A secret is read when it is used, and never reaches a message or a log. Every
error names the key and says what to do.
"""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cdc.base.errors import ConfigError, SourceUnavailableError, StorageError
from cdc.config.alarms import MailConfig, WebhookConfig
from cdc.config.apply import ApplyConfig
from cdc.config.metrics import MetricsConfig
from cdc.config.mq import MqSecurityConfig
from cdc.config.s3 import S3Config
from cdc.config.server import CanalConfig, TokenConfig
from cdc.config.source import SourceConfig
from cdc.config.store import EncryptionConfig, StandbyConfig, StoreConfig
from cdc.disk.encryption.keys import KEY_BYTES, KeySources

_LEAST_SECRET_BYTES = 16
_COMMAND_S = 30
"""Limit for a command that prints a password."""


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
    if source.password_command is not None:
        return Credentials(source.user, _output(source.password_command, "source.password_command", "password"))
    password = _Secret(
        f"the password of {source.user!r}",
        env_key="source.password_env",
        env=source.password_env,
        file_key="source.password_file",
        file=source.password_file,
    ).text()
    return Credentials(source.user, password or "")


def source_user(source: SourceConfig) -> str:
    """Returns the user for the source. Raises ConfigError."""
    found = "" if source.connection is None else _lookup_connection(source.connection).user
    return found or source.user


def hash_key(apply: ApplyConfig) -> bytes:
    """Returns the key of the policy ``hash``, without white space around it. Raises ConfigError."""
    secret = _Secret(
        "the key of hash",
        env_key="apply.hash_key_env",
        env=apply.hash_key_env,
        file_key="apply.hash_key_file",
        file=apply.hash_key_file,
    )
    text = secret.text()
    if text is None:
        raise ConfigError(
            "a column is to be hashed, and no key is configured",
            place="apply.columns",
            remedy="Name it with apply.hash_key_env or apply.hash_key_file.",
        )
    if not text.strip():
        raise ConfigError("the key of hash is empty", place=secret.place, remedy=secret.remedy)
    return text.strip().encode()


def standby_secret(standby: StandbyConfig) -> bytes | None:
    """Returns the secret of master and standby, without white space around it; None if the configuration names none.
    Raises ConfigError."""
    secret = _Secret(
        "the secret of master and standby",
        env_key="store.standby.secret_env",
        env=standby.secret_env,
        file_key="store.standby.secret_file",
        file=standby.secret_file,
    )
    found = secret.content()
    if found is None:
        return None
    found = found.strip()
    if len(found) < _LEAST_SECRET_BYTES:
        raise ConfigError(
            f"the secret has {len(found)} bytes; at least {_LEAST_SECRET_BYTES} are needed",
            place=secret.place,
            remedy="Make one with: openssl rand -hex 32",
        )
    return found


def encryption_keys(encryption: EncryptionConfig) -> KeySources | None:
    """Returns the keys that the configuration names for files, which are read at their use; None if it names none."""
    old = tuple(
        partial(_key, f"store.encryption.old_keys.{number}.", one.env, one.file, one.command)
        for number, one in enumerate(encryption.old_keys)
    )
    if not encryption.has_key and not old:
        return None
    current = None
    if encryption.has_key:
        at = "store.encryption.key_"
        current = partial(_key, at, encryption.key_env, encryption.key_file, encryption.key_command)
    return KeySources(encryption.model_dump_json(), current, old)


def _key(at: str, env: str | None, file: Path | None, command: Sequence[str] | None) -> bytes:
    """Returns the 32 bytes of a key. Raises ConfigError; StorageError if the command fails that prints the key."""
    secret = _Secret("the key of the store", env_key=f"{at}env", env=env, file_key=f"{at}file", file=file)
    place = secret.place
    if command is not None:
        place = f"{at}command"
        try:
            text: str | None = _output(command, place, "key")
        except SourceUnavailableError as error:
            raise StorageError(error.message, place=place, remedy=error.remedy) from None
    else:
        text = secret.text()
    try:
        key = bytes.fromhex((text or "").strip())
    except ValueError:  # its text would repeat the key
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"the key is not {2 * KEY_BYTES} hexadecimal digits",
            place=place,
            remedy="Make one with: openssl rand -hex 32",
        )
    return key


def server_token(store: StoreConfig) -> str:
    """Returns the token for the server that has the store. Raises ConfigError."""
    return _token(
        _Secret(
            "the token that the server knows",
            env_key="store.token_env",
            env=store.token_env,
            file_key="store.token_file",
            file=store.token_file,
        )
    )


def subscriber_token(subscriber: str, token: TokenConfig) -> str:
    """Returns the token of a subscriber, for the server. Raises ConfigError."""
    return _named_token(f"server.tokens.{subscriber}", f"the token of {subscriber}", token)


def _named_token(key: str, what: str, token: TokenConfig) -> str:
    return _token(_Secret(what, env_key=f"{key}.env", env=token.env, file_key=f"{key}.file", file=token.file))


def role_token(role: str, token: TokenConfig) -> str:
    """Returns the token of a role, for the server and those who ask it. Raises ConfigError."""
    return _named_token(f"server.roles.{role}", f"the token of the {role}", token)


def canal_password(canal: CanalConfig) -> str | None:
    """Returns the password of Canal's clients; None if they need none. Raises ConfigError."""
    secret = _Secret(
        "the password of Canal's clients",
        env_key="server.canal.password_env",
        env=canal.password_env,
        file_key="server.canal.password_file",
        file=canal.password_file,
    )
    text = secret.text()
    if text is not None and not text:
        raise ConfigError("the password of Canal's clients is empty", place=secret.place, remedy=secret.remedy)
    return text


def mq_password(security: MqSecurityConfig) -> str | None:
    """Returns the password for Kafka's brokers; None if they ask for none. Raises ConfigError."""
    return _Secret(
        "the password for Kafka",
        env_key="mq.security.password_env",
        env=security.password_env,
        file_key="mq.security.password_file",
        file=security.password_file,
    ).text()


def _token(secret: _Secret) -> str:
    """Returns a token that can be a header of HTTP. Raises ConfigError."""
    text = (secret.text() or "").strip()
    if len(text) < _LEAST_SECRET_BYTES:
        raise ConfigError(
            f"the token has {len(text)} characters; at least {_LEAST_SECRET_BYTES} are needed",
            place=secret.place,
            remedy="Make one with: openssl rand -hex 32",
        )
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(
            "the token has other characters than letters, digits and signs of ASCII",
            place=secret.place,
            remedy="Make one with: openssl rand -hex 32",
        )
    return text


def push_credentials(metrics: MetricsConfig) -> Credentials | None:
    """Returns the user and the password for the Pushgateway; None if the configuration names none. Raises
    ConfigError."""
    return _credentials(
        "metrics.push_password_", metrics.push_user, metrics.push_password_env, metrics.push_password_file
    )


def webhook_secret(webhook: WebhookConfig) -> bytes | None:
    """Returns the secret that signs the alarms of a webhook; None if the configuration names none. ``whsec_`` and
    base64 after it stand for bytes, as standardwebhooks.com says. Raises ConfigError."""
    secret = _Secret(
        "the secret of the webhook",
        env_key="alarms.webhook.secret_env",
        env=webhook.secret_env,
        file_key="alarms.webhook.secret_file",
        file=webhook.secret_file,
    )
    text = secret.text()
    if text is None:
        return None
    text = text.strip()
    try:
        found = b64decode(text.removeprefix("whsec_"), validate=True) if text.startswith("whsec_") else text.encode()
    except ValueError:  # its text would repeat the secret
        found = b""
    if len(found) < _LEAST_SECRET_BYTES:
        raise ConfigError(
            f"the secret is no text of at least {_LEAST_SECRET_BYTES} bytes, or base64 of them after whsec_",
            place=secret.place,
            remedy="Make one with: openssl rand -hex 32",
        )
    return found


def mail_credentials(mail: MailConfig) -> Credentials | None:
    """Returns the user and the password for the SMTP server; None if the configuration names none. Raises
    ConfigError."""
    return _credentials("alarms.mail.password_", mail.user, mail.password_env, mail.password_file)


def _credentials(key: str, user: str | None, env: str | None, file: Path | None) -> Credentials | None:
    if user is None:
        return None
    secret = _Secret(f"the password of {user!r}", env_key=f"{key}env", env=env, file_key=f"{key}file", file=file)
    return Credentials(user, secret.text() or "")


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
    secret = _Secret(
        f"the secret of the access key {s3.access_key_id}",
        env_key="s3.secret_access_key_env",
        env=s3.secret_access_key_env,
        file_key="s3.secret_access_key_file",
        file=s3.secret_access_key_file,
    )
    token = _Secret(
        f"the session token of the access key {s3.access_key_id}",
        env_key="s3.session_token_env",
        env=s3.session_token_env,
        file_key="",
        file=None,
    )
    return AccessKey(s3.access_key_id, (secret.text() or "").strip(), token.text())


def _output(command: Sequence[str], key: str, what: str) -> str:
    """Returns the first line that a command prints. What it writes to standard error goes there; its output is in no
    message. Raises ConfigError, SourceUnavailableError."""
    program = command[0]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=_COMMAND_S)
    except subprocess.TimeoutExpired:
        raise SourceUnavailableError(
            f"{program} has not printed the {what} within {_COMMAND_S} s", place=key, remedy="Run it by hand."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{program} cannot be run: {error.strerror}",
            place=key,
            remedy="Give the program's path, and see that the user who runs cdc may execute it.",
        ) from None
    if done.returncode != 0:
        raise SourceUnavailableError(
            f"{program} ended with code {done.returncode} and no {what}", place=key, remedy="Run it by hand."
        )
    try:
        lines = done.stdout.decode().splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{program} does not print UTF-8 text", place=key, remedy="Run it by hand.") from None
    if not lines or not lines[0]:
        raise ConfigError(f"{program} prints no {what}", place=key, remedy="It has to be its first line.")
    return lines[0]


@dataclass(frozen=True)
class _Secret:
    """A secret in an environment variable or in a file, of which at most one is named."""

    what: str
    """The secret as remedies name it: "the key of hash"."""
    env_key: str
    env: str | None
    file_key: str
    file: Path | None

    @property
    def place(self) -> str:
        return self.env_key if self.env is not None else self.file_key

    @property
    def remedy(self) -> str:
        if self.env is not None:
            return f"Set {self.env} to {self.what}."
        return f"Write {self.what} into its first line, readable by the user who runs cdc."

    def content(self) -> bytes | None:
        """Returns the variable's value or the file's content; None if neither is named. Raises ConfigError."""
        if self.env is not None:
            value = os.environ.get(self.env)
            if value is None:
                raise ConfigError(
                    f"the environment variable {self.env} is not set", place=self.place, remedy=self.remedy
                )
            return os.fsencode(value)
        if self.file is None:
            return None
        try:
            return self.file.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{self.file} cannot be read: {error.strerror}", place=self.place, remedy=self.remedy
            ) from None

    def text(self) -> str | None:
        """Returns the variable's value or the file's first line; None if neither is named. Raises ConfigError."""
        content = self.content()
        if content is None:
            return None
        try:
            text = content.decode()
        except UnicodeDecodeError:
            found = f"the environment variable {self.env}" if self.env is not None else f"{self.file}"
            raise ConfigError(f"{found} does not hold UTF-8 text", place=self.place, remedy=self.remedy) from None
        if self.env is not None:
            return text
        return text.splitlines()[0] if text else ""


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
