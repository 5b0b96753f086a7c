"""``lower_case_table_names``: the servers' own rules for the letters of names."""

from __future__ import annotations

import pytest

from cdc.base.patterns import lower_name
from cdc.testing.servers import Server

_CHUNK = 4000


@pytest.mark.parametrize("kind", ["mysql9", "mariadb11", "mariadb10", "mysql56"])
def test_every_letter_becomes_the_one_that_the_server_makes_of_it(kind: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(kind)
    # Names hold characters up to U+FFFF.
    letters = [chr(code) for code in range(0x80, 0x10000) if not 0xD800 <= code < 0xE000]
    with server.connect() as connection, connection.cursor() as cursor:
        for at in range(0, len(letters), _CHUNK):
            some = letters[at : at + _CHUNK]
            cursor.execute("SELECT LOWER(CONVERT(%s USING utf8) COLLATE utf8_general_ci)", ("|".join(some),))
            [(lower,)] = cursor.fetchall()
            assert [lower_name(letter) for letter in some] == lower.split("|")
