"""Connections with TLS in each mode, with certificates of capture's own, and by socket files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import ConfigError, SourceRefusedError, SourceUnavailableError
from cdc.config import SourceConfig
from cdc.source.connection import connect, explain, place_of, query
from cdc.source.dump import DumpStream
from cdc.source.server import current_position
from cdc.testing.servers import PASSWORD, USER, Server
from tests.support.proxy import Proxy
from tests.support.server import Certificates, make_certificates
from tests.support.versions import needs

KINDS = ("mysql9", "mariadb10", "mariadb11")


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_PW", PASSWORD)


def source(server: Server, **keys: Any) -> SourceConfig:
    return SourceConfig.model_validate({"url": server.url, "password_env": "SOURCE_PW", "server_id": 7} | keys)


def cipher(config: SourceConfig) -> str:
    with connect(config) as connection:
        return str(query(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0]["Value"])


@pytest.fixture
def certify(mysql9: Server) -> Iterator[Callable[[Certificates], None]]:
    """Returns a function that gives the server a certificate while the test runs."""
    needs(mysql9, "SSL variables that can be set")
    names = ("ssl_ca", "ssl_cert", "ssl_key")

    def use(files: Iterable[str | Path]) -> None:
        given = zip(names, files, strict=True)
        mysql9.execute(*(f"SET GLOBAL {name} = '{file}'" for name, file in given), "ALTER INSTANCE RELOAD TLS")

    with mysql9.connect() as connection:
        before = [str(query(connection, f"SELECT @@global.{name} AS v")[0]["v"]) for name in names]
    yield lambda made: use((made.ca, made.certificate, made.key))
    use(before)


@pytest.fixture
def certified(certify: Callable[[Certificates], None], tmp_path: Path) -> Certificates:
    """The server's certificate for 127.0.0.1."""
    certificates = make_certificates(tmp_path / "tls")
    certify(certificates)
    return certificates


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11"])
def test_the_mode_says_whether_there_is_tls(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    assert cipher(source(server))
    assert cipher(source(server, ssl_mode="required"))
    assert cipher(source(server, ssl_mode="disabled")) == ""


def test_a_server_without_tls_is_refused_where_tls_is_required(mariadb10: Server) -> None:
    assert cipher(source(mariadb10)) == ""
    with pytest.raises(SourceRefusedError, match=r"SSL is required .* set source.ssl_mode: preferred"):
        connect(source(mariadb10, ssl_mode="required"))


def test_the_certificate_is_verified(
    mysql9: Server, certified: Certificates, certify: Callable[[Certificates], None], tmp_path: Path
) -> None:
    assert cipher(source(mysql9, ssl_ca=certified.ca))
    stranger = make_certificates(tmp_path / "other", "stranger").ca
    for mode in ("verify_ca", "verify_identity"):
        with pytest.raises(SourceRefusedError, match="certificate is not accepted"):
            connect(source(mysql9, ssl_ca=stranger, ssl_mode=mode))
        with pytest.raises(SourceRefusedError, match="certificate is not accepted"):
            connect(source(mysql9, ssl_mode=mode))  # the system does not know the authority
    elsewhere = make_certificates(tmp_path / "elsewhere", address="127.0.0.9")
    certify(elsewhere)
    assert cipher(source(mysql9, ssl_ca=elsewhere.ca, ssl_mode="verify_ca"))
    with pytest.raises(SourceRefusedError, match=r"source.ssl_mode: verify_ca accepts any name"):
        connect(source(mysql9, ssl_ca=elsewhere.ca))


def test_a_connection_that_is_cut_anywhere_in_the_login_may_be_tried_again(mysql9: Server) -> None:
    refused = []
    with Proxy(mysql9.port) as proxy:
        through = source(mysql9, url=mysql9.url.replace(f":{mysql9.port}", f":{proxy.port}"), ssl_mode="required")
        assert cipher(through)
        for count in (*range(1, 120, 7), *range(120, 2500, 53)):
            proxy.end_after(count, stall=False)
            try:
                connect(through).close()
            except SourceUnavailableError:
                continue
            except SourceRefusedError as error:
                refused.append(f"after {count} bytes: {error}")
            if not proxy.has_ended:
                break
    assert refused == [] and count > 1000


def test_an_account_that_requires_a_certificate(mysql9: Server, certified: Certificates) -> None:
    mysql9.execute(
        f"CREATE USER clerk@'%' IDENTIFIED BY '{PASSWORD}' REQUIRE X509",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO clerk@'%'",
    )
    try:
        url = mysql9.url.replace(f"//{USER}@", "//clerk@")
        with pytest.raises(SourceRefusedError, match=r"needs source.ssl_cert and ssl_key"):
            connect(source(mysql9, url=url))
        pair = {"ssl_cert": certified.certificate, "ssl_key": certified.key}
        assert cipher(source(mysql9, url=url, **pair))
        verified = source(mysql9, url=url, ssl_ca=certified.ca, **pair)
        with connect(verified) as connection:
            position = current_position(connection)
        stream = DumpStream(verified, position, "tls")
        buffer = memoryview(bytearray(1 << 16))
        assert any(stream.recv_into(buffer) for _ in range(10))
        stream.close()
    finally:
        mysql9.execute("DROP USER clerk@'%'")


def test_files_that_are_none_of_these(mysql9: Server, certified: Certificates, tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("not PEM")
    with pytest.raises(ConfigError, match=r"text.pem cannot be used"):
        connect(source(mysql9, ssl_ca=text))
    for cert, key in ((certified.certificate, text), (certified.ca, certified.key)):
        with pytest.raises(ConfigError, match=r"source.ssl_cert: .* cannot be used.*must not be encrypted"):
            connect(source(mysql9, ssl_cert=cert, ssl_key=key))
    with pytest.raises(ConfigError, match=r"source.ssl_key: .*gone.key is not a file"):
        connect(source(mysql9, ssl_cert=certified.certificate, ssl_key=tmp_path / "gone.key"))


def test_a_package_that_a_way_of_logging_in_needs() -> None:
    missing = RuntimeError("'pynacl' package is required for ed25519_password auth method")  # as PyMySQL raises it
    error = explain(missing, "db.example:3306", "cdc")
    assert isinstance(error, SourceRefusedError)
    assert "'pynacl' package is required" in str(error)
    assert "Install it with pip: towpath[ed25519]" in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_socket_file(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    with server.connect() as connection:
        path = query(connection, "SELECT @@socket AS s")[0]["s"]
    url = f"{server.url.split(':')[0]}://clerk@localhost"
    server.execute(
        f"CREATE USER clerk@localhost IDENTIFIED BY '{PASSWORD}'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO clerk@localhost",
    )
    request.addfinalizer(lambda: server.execute("DROP USER clerk@localhost"))
    local = source(server, url=url, socket=path)
    assert place_of(local) == path
    with connect(local) as connection:
        position = current_position(connection)
        rows = query(connection, "SELECT SUBSTRING_INDEX(USER(), '@', -1) AS host")
    assert rows[0]["host"] == "localhost"
    stream = DumpStream(local, position, "socket")
    buffer = memoryview(bytearray(1 << 16))
    assert any(stream.recv_into(buffer) for _ in range(10))
    stream.close()
    with pytest.raises(SourceUnavailableError, match=r"No such file or directory. Check source.socket"):
        connect(source(server, url=url, socket=f"{path}.gone"))
