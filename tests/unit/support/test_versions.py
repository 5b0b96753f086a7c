"""Nothing is left out on the servers that tests name; on others, what they lack."""

from __future__ import annotations

import pymysql
import pytest

from cdc.testing.servers.kinds import KINDS, STANDINS_VARIABLE
from tests.support.versions import SINCE, UNTIL, is_unknown, lacks, needs, reset_statement, status_statement, with_types

DATABASES = [name for name in KINDS if name.startswith(("mysql", "mariadb"))]
TYPES = {"INT": 1, "VECTOR(3)": 2, "UUID": 3, "YEAR(2)": 4}


@pytest.mark.parametrize("kind", DATABASES)
def test_without_standins_nothing_is_left_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STANDINS_VARIABLE, raising=False)
    for feature in (*SINCE, *UNTIL):
        assert not lacks(kind, feature)
        needs(kind, feature)
    assert with_types(kind, TYPES) == TYPES
    assert not is_unknown(kind, pymysql.err.ProgrammingError(1064, "syntax"))


def test_standins_leave_out_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STANDINS_VARIABLE, "mysql9=mysql80,mysql56=mysql57,mariadb11=mariadb114,mariadb10=mariadb105")
    assert with_types("mysql9", TYPES) == {"INT": 1}
    assert with_types("mysql56", TYPES) == {"INT": 1}
    assert with_types("mariadb11", TYPES) == {"INT": 1, "UUID": 3, "YEAR(2)": 4}
    assert with_types("mariadb10", TYPES) == {"INT": 1, "YEAR(2)": 4}
    with pytest.raises(pytest.skip.Exception, match=r"8\.0\.33, which stands in for mysql9, has no tagged GTIDs"):
        needs("mysql9", "tagged GTIDs")
    needs("mysql9", "compressed transactions")
    assert (status_statement("mysql9"), reset_statement("mariadb11")) == ("SHOW MASTER STATUS", "RESET MASTER")


def test_words_of_the_servers_that_tests_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STANDINS_VARIABLE, raising=False)
    assert [status_statement(kind) for kind in ("mysql9", "mysql56", "mariadb11")] == [
        "SHOW BINARY LOG STATUS",
        "SHOW MASTER STATUS",
        "SHOW MASTER STATUS",
    ]
