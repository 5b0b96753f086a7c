"""Configuration files for tests: a small valid one with changes, and a checkout that holds one."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.base.errors import ConfigError
from cdc.config import parse

FILE = Path("/srv/towpath/conf/shop.yaml")
BASE: dict[str, Any] = {
    "source": {"url": "mysql://cdc@db.example:3306", "server_id": 52017, "start": "earliest"},
    "tables": {"include": [r"shop\..*"]},
    "store": {"path": "./data/shop/store"},
    "meta": {"path": "./data/shop/meta"},
    "apply": {"target": "./lake"},
}
GONE = object()
"""A value that removes the key."""


def server_id_of(file: Path) -> int:
    """Returns a server_id for the destination of a configuration file, which no other has: a server that tests share may
    still know the replica of the test before."""
    return int.from_bytes(hashlib.sha256(str(file).encode()).digest()[:4], "little") | 1


def document(**changes: Any) -> str:
    """The base with values replaced; ``source__url`` is the key ``source.url``."""
    data = copy.deepcopy(BASE)
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = data
        for name in sections:
            section = section.setdefault(name, {})
        if value is GONE:
            del section[key]
        else:
            section[key] = value
    return yaml.safe_dump(data)


def message(**changes: Any) -> str:
    """The message that refuses the base with values replaced, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        parse(document(**changes), FILE)
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert text.startswith(str(FILE))
    assert "\n" not in text
    return text.removeprefix(f"{FILE}: ")


_RELEASE = """\
source: {url: 'mysql://cdc@db.example:3306', server_id: 52017, password_file: shop.password, ssl_ca: ca.pem}
tables: {include: ['shop\\..*']}
store: {path: STORE/store}
meta: {path: STORE/meta}
apply: {target: STORE/lake}
"""


def release(folder: Path, name: str, store: str = "./data") -> Path:
    """A checkout with its own copy of the configuration."""
    checkout = folder / "releases" / name
    (checkout / "conf").mkdir(parents=True)
    (checkout / "conf" / "shop.yaml").write_text(_RELEASE.replace("STORE", store))
    return checkout
