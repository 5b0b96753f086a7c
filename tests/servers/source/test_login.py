"""Ways of logging in that need a plugin of the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cdc.base.errors import SourceRefusedError
from cdc.config import SourceConfig
from cdc.source.connection import connect, query
from cdc.source.dump import DumpStream
from cdc.source.server import current_position
from cdc.testing.servers import Server, find_kind
from cdc.testing.servers.kinds import MariaDb
from tests.support.versions import needs

PASSWORD = "pässword, longer than the 32 bytes of a key"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A MariaDB with the plugins ed25519 and parsec, and an account of each."""
    needs("mariadb11", "further plugins")
    kind = find_kind("mariadb11")
    assert isinstance(kind, MariaDb)
    plugins = [f"--plugin-load-add={name}" for name in ("auth_ed25519", "auth_parsec")]
    with Server("mariadb11", options=(f"--plugin-dir={kind.further_plugins()}", *plugins)) as running:
        for plugin in ("ed25519", "parsec"):
            running.execute(
                f"CREATE USER {plugin}@'%' IDENTIFIED VIA {plugin} USING PASSWORD('{PASSWORD}')",
                f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT, BINLOG MONITOR ON *.* TO {plugin}@'%'",
            )
        yield running


def source(server: Server, user: str, **keys: object) -> SourceConfig:
    url = f"mariadb://{user}@127.0.0.1:{server.port}"
    return SourceConfig.model_validate({"url": url, "password_env": "SOURCE_PW", "server_id": 7} | keys)


@pytest.mark.long
@pytest.mark.parametrize("ssl_mode", ["required", "disabled"])
def test_ed25519(server: Server, monkeypatch: pytest.MonkeyPatch, ssl_mode: str) -> None:
    config = source(server, "ed25519", ssl_mode=ssl_mode)
    monkeypatch.setenv("SOURCE_PW", PASSWORD)
    with connect(config) as connection:
        assert query(connection, "SELECT CURRENT_USER() AS u")[0]["u"] == "ed25519@%"
        position = current_position(connection)
    stream = DumpStream(config, position, "login")
    buffer = memoryview(bytearray(1 << 16))
    assert any(stream.recv_into(buffer) for _ in range(10))
    stream.close()
    monkeypatch.setenv("SOURCE_PW", PASSWORD[:-1])
    with pytest.raises(SourceRefusedError, match="refuses user 'ed25519' with this password"):
        connect(config)


def test_a_way_that_is_not_known(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_PW", PASSWORD)
    with pytest.raises(SourceRefusedError, match=r"parsec.*Change the account's authentication plugin"):
        connect(source(server, "parsec"))
