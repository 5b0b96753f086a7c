"""Passwords and keys: where they come from, and the message when they cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.base.errors import ConfigError, SourceUnavailableError
from cdc.config import ApplyConfig, SourceConfig, StandbyConfig, secret_source
from cdc.config.secrets import Credentials, hash_key, look_up_connections_with, source_credentials, standby_secret

URL = "mysql://cdc@db.example:3306"
SECRET = b"0123456789abcdef0123456789abcdef"


def fails(resolve: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve()
    return str(caught.value)


def source(**keys: object) -> SourceConfig:
    return SourceConfig.model_validate({"url": URL, "server_id": 7, **keys})


def test_the_password_of_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_credentials(source()) == Credentials("cdc", "")
    by_env = source(password_env="TOWPATH_TEST_PASSWORD")
    monkeypatch.delenv("TOWPATH_TEST_PASSWORD", raising=False)
    assert fails(lambda: source_credentials(by_env)) == (
        "source.password_env: the environment variable TOWPATH_TEST_PASSWORD is not set. "
        "Set TOWPATH_TEST_PASSWORD to the password of 'cdc'."
    )
    monkeypatch.setenv("TOWPATH_TEST_PASSWORD", " Sésam ")
    assert source_credentials(by_env) == Credentials("cdc", " Sésam ")
    monkeypatch.setenv("TOWPATH_TEST_PASSWORD", "Sesam\udcff")
    text = fails(lambda: source_credentials(by_env))
    assert text.startswith("source.password_env: the environment variable TOWPATH_TEST_PASSWORD does not hold UTF-8")
    assert "Sesam" not in text
    file = tmp_path / "password"
    by_file = source(password_file=str(file))
    assert fails(lambda: source_credentials(by_file)) == (
        f"source.password_file: {file} cannot be read: No such file or directory. "
        "Write the password of 'cdc' into its first line, readable by the user who runs cdc."
    )
    file.write_text("Sesam \nsecond line\n")
    assert source_credentials(by_file).password == "Sesam "
    file.write_text("")
    assert source_credentials(by_file).password == ""
    file.write_bytes(b"Sesam\xff")
    text = fails(lambda: source_credentials(by_file))
    assert text.startswith(f"source.password_file: {file} does not hold UTF-8 text. Write the password")
    assert "Sesam" not in text


def test_the_password_that_a_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "password"
    by_command = source(password_command=["cat", str(file)])
    file.write_text("Sesam öffne dich\nsecond line\n")
    assert source_credentials(by_command) == Credentials("cdc", "Sesam öffne dich")
    file.write_text("rotated\n")
    assert source_credentials(by_command).password == "rotated", "it runs each time"
    for content, words in ((b"", "cat does not print"), (b"\nx", "cat does not print"), (b"a\xff", "UTF-8")):
        file.write_bytes(content)
        assert words in fails(lambda: source_credentials(by_command))
    missing = source(password_command=["towpath-no-such-program"])
    assert fails(lambda: source_credentials(missing)).startswith(
        "source.password_command: towpath-no-such-program cannot be run: No such file or directory."
    )
    # These may succeed later: the vault is down.
    failing = source(password_command=["sh", "-c", "echo Sesam; exit 3"])
    with pytest.raises(SourceUnavailableError, match="sh ended with code 3 and did not print the password") as caught:
        source_credentials(failing)
    assert "Sesam" not in str(caught.value)
    monkeypatch.setattr(secret_source, "_COMMAND_S", 0.2)
    with pytest.raises(SourceUnavailableError, match=r"sleep has not printed the password of 'cdc' within 0\.2 s"):
        source_credentials(source(password_command=["sleep", "60"]))


def test_an_airflow_connection_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    connected = source(connection="shop_db")
    monkeypatch.delenv("AIRFLOW_CONN_SHOP_DB", raising=False)
    assert "Set AIRFLOW_CONN_SHOP_DB, or use password_env" in fails(lambda: source_credentials(connected))
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "mysql://a%40b:s3cret%2F@elsewhere:1/")
    assert source_credentials(connected) == Credentials("a@b", "s3cret/")
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", '{"password": "s3cret"}')
    assert source_credentials(connected) == Credentials("cdc", "s3cret")
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", '{"password": "Sesam"')
    text = fails(lambda: source_credentials(connected))
    assert text.startswith("AIRFLOW_CONN_SHOP_DB: is neither a URL nor a JSON object")
    assert "Sesam" not in text


def test_another_lookup_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "mysql://a:b@elsewhere:1/")
    with look_up_connections_with(lambda ident: Credentials(f"user of {ident}", "pw")):
        assert source_credentials(source(connection="shop_db")) == Credentials("user of shop_db", "pw")
    assert source_credentials(source(connection="shop_db")) == Credentials("a", "b")


def test_a_password_is_not_printed() -> None:
    assert "Sesam" not in repr(Credentials("cdc", "Sesam"))


def test_the_secret_of_a_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    by_file, by_env = StandbyConfig(secret_file=file), StandbyConfig(secret_env="TOWPATH_TEST_SECRET")
    file.write_bytes(SECRET + b"\n")
    assert standby_secret(by_file) == SECRET
    monkeypatch.setenv("TOWPATH_TEST_SECRET", SECRET.decode())
    assert standby_secret(by_env) == SECRET
    assert standby_secret(StandbyConfig()) is None
    monkeypatch.delenv("TOWPATH_TEST_SECRET")
    assert fails(lambda: standby_secret(by_env)) == (
        "store.standby.secret_env: the environment variable TOWPATH_TEST_SECRET is not set. "
        "Set TOWPATH_TEST_SECRET to the secret of master and standby."
    )
    file.write_bytes(b"short")
    assert "store.standby.secret_file: the secret has 5 bytes; at least 16" in fails(lambda: standby_secret(by_file))
    file.unlink()
    assert "cannot be read" in fails(lambda: standby_secret(by_file))


def test_the_key_of_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_env = ApplyConfig(target="x", hash_key_env="TOWPATH_TEST_KEY")
    monkeypatch.delenv("TOWPATH_TEST_KEY", raising=False)
    assert fails(lambda: hash_key(by_env)) == (
        "apply.hash_key_env: the environment variable TOWPATH_TEST_KEY is not set. "
        "Set TOWPATH_TEST_KEY to the key of hash."
    )
    monkeypatch.setenv("TOWPATH_TEST_KEY", " ")
    assert fails(lambda: hash_key(by_env)).startswith("apply.hash_key_env: the key of hash is empty")
    monkeypatch.setenv("TOWPATH_TEST_KEY", "Sesam")
    assert hash_key(by_env) == b"Sesam"
    file = tmp_path / "key"
    by_file = ApplyConfig(target="x", hash_key_file=file)
    assert fails(lambda: hash_key(by_file)).startswith(f"apply.hash_key_file: {file} cannot be read: No such file")
    file.write_text("")
    assert "the key of hash is empty" in fails(lambda: hash_key(by_file))
    file.write_text("Sesam\nsecond line\n")
    assert hash_key(by_file) == b"Sesam"
    text = fails(lambda: hash_key(ApplyConfig(target="x")))
    assert text.startswith("apply.columns: a column is to be hashed, and no key is configured")
