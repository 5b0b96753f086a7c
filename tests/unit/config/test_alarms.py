"""``alarms``: what is refused, and where its files are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.config import parse
from tests.support.configurations import FILE, GONE, document, message

MAIL = {"host": "smtp.example", "sender": "a@x.example", "to": ["b@x.example"]}
HOOK = {"url": "https://hooks.example/towpath"}


def test_nobody_is_told_unless_somebody_is_named() -> None:
    assert parse(document(), FILE).alarms.handlers == ()
    assert parse(document(alarms={"webhook": HOOK, "mail": MAIL, "command": ["x"]}), FILE).alarms.handlers == (
        "webhook",
        "mail",
        "command",
    )
    assert "alarms: nobody is told; add webhook" in message(alarms={"for_s": 5})


def test_files_are_found() -> None:
    mail = {**MAIL, "user": "u", "password_file": "mail.password", "ca_file": "ca.pem"}
    config = parse(document(alarms={"webhook": {**HOOK, "secret_file": "hook.secret"}, "mail": mail}), FILE)
    assert config.alarms.webhook.secret_file == Path("/srv/towpath/conf/hook.secret")
    assert config.alarms.mail.password_file == Path("/srv/towpath/conf/mail.password")
    assert config.alarms.mail.ca_file == Path("/srv/towpath/conf/ca.pem")
    assert config.alarms_path == Path("/srv/towpath/data/shop/store.alarms.json")
    config = parse(document(alarms={"command": ["x"], "path": "data/alarms/shop.json"}), FILE)
    assert config.alarms_path == Path("/srv/towpath/data/alarms/shop.json")


@pytest.mark.parametrize(("tls", "port"), [("starttls", 587), ("tls", 465), ("none", 25)])
def test_the_port_follows_the_encryption(tls: str, port: int) -> None:
    assert parse(document(alarms={"mail": {**MAIL, "tls": tls}}), FILE).alarms.mail.port_or_default == port
    assert parse(document(alarms={"mail": {**MAIL, "tls": tls, "port": 26}}), FILE).alarms.mail.port_or_default == 26


@pytest.mark.parametrize(
    ("alarms", "says"),
    [
        ({"webhook": {"secret_env": "X"}}, "secret_env has no effect without url"),
        ({"webhook": {"url": "ftp://x"}}, "is not a URL"),
        ({"webhook": {"url": "https://u:hunter2@x"}}, "must not hold a user or a password"),
        ({"webhook": {**HOOK, "secret_env": "X", "secret_file": "x"}}, "contradict each other; keep one"),
        ({"webhook": {"url": "http://x", "ca_file": "ca.pem"}}, "ca_file has no effect with an url of http"),
        ({"mail": {"to": ["a@b"]}}, "to has no effect without host"),
        ({"mail": {"host": "x"}}, "host needs sender and to"),
        ({"mail": {**MAIL, "user": "u"}}, "user and its password belong together"),
        ({"mail": {**MAIL, "password_env": "P"}}, "user and its password belong together"),
        (
            {"mail": {**MAIL, "tls": "none", "user": "u", "password_env": "P"}},
            "would cross the network to smtp.example",
        ),
        ({"mail": {**MAIL, "tls": "none", "ca_file": "ca.pem"}}, "ca_file has no effect with tls: none"),
        ({"mail": {**MAIL, "to": ["a@x.example\nBcc: c@x.example"]}}, "is not an address of mail"),
        ({"mail": {**MAIL, "sender": "nobody"}}, "'nobody' is not an address of mail"),
        ({"command": ["x"], "ignore": ["lag"]}, "'lag' is no alarm; the alarms are capture_failed, "),
        ({"command": ["x"], "timeout_s": 0}, "must be more than 0"),
        ({"command": "page somebody"}, "must be a list"),
    ],
)
def test_what_is_refused(alarms: dict[str, Any], says: str) -> None:
    text = message(alarms=alarms)
    assert says in text
    assert "hunter2" not in text


def test_the_server_of_a_store_sends_the_alarms() -> None:
    store = {"kind": "server", "url": "https://store.example:8040", "token_env": "T"}
    said = message(store=store, meta=GONE, alarms={"command": ["x"]})
    assert "alarms and store.kind: server contradict each other" in said
