"""Configurations of real sources for servers with instances, and what tests ask these servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

from cdc.testing.servers import HOST, USER, Server
from tests.support.configurations import server_id_of

OPERATOR, VIEWER = "0123456789abcdef-operator", "0123456789abcdef-viewer"


def write(conf: Path, name: str, source: Server, db: str, **server: Any) -> Path:
    """Writes the configuration of a destination that captures a database, and returns its file."""
    conf.mkdir(parents=True, exist_ok=True)
    flavor = "mysql" if source.kind.name.startswith("mysql") else "mariadb"
    document = {
        "source": {
            "url": f"{flavor}://{USER}@{HOST}:{source.port}",
            "password_env": "TOWPATH_TEST_PASSWORD",
            "server_id": server_id_of(conf / name),
            "start": "now",
        },
        "tables": {"include": [rf"{db}\..*"]},
        "store": {"path": f"data/{name}/store"},
        "meta": {"path": f"data/{name}/meta"},
        "apply": {"target": f"lake/{name}"},
        "server": server,
    }
    return replace(conf / f"{name}.yaml", document)


def change(file: Path, **sections: dict[str, Any]) -> None:
    """Changes sections of a configuration file, each by the keys that are given."""
    document = yaml.safe_load(file.read_text())
    for name, values in sections.items():
        document[name] = {**document.get(name, {}), **values}
    replace(file, document)


def replace(file: Path, document: dict[str, Any]) -> Path:
    """Replaces a configuration file by renaming another one, as most editors do."""
    new = file.with_suffix(".new")
    new.write_text(yaml.safe_dump(document))
    new.replace(file)
    return file


class Operator:
    """A client for a server's requests about instances."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=90)

    def list(self) -> dict[str, Any]:
        """Returns the documents of all instances, by name."""
        return {
            document["destination"]: document for document in self._result(self.http.get("/v1/instances"))["instances"]
        }

    def one(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = self._result(self.http.get(f"/v1/instances/{name}"))["instance"]
        return document

    def act(self, name: str, what: str) -> dict[str, Any]:
        document: dict[str, Any] = self._result(self.http.post(f"/v1/instances/{name}/{what}"))["instance"]
        return document

    def logs(self, name: str) -> str:
        log = self._result(self.http.get(f"/v1/instances/{name}/logs?lines=400"))
        return "\n".join(line["text"] for line in log["lines"])

    def wait(self, name: str, condition: Callable[[dict[str, Any]], bool], limit_s: float = 60) -> dict[str, Any]:
        """Waits until the document of an instance is like that, and returns it."""
        deadline = time.monotonic() + limit_s
        document: dict[str, Any] = {}
        while time.monotonic() < deadline:
            document = self.list().get(name, {})
            if condition(document):
                return document
            time.sleep(0.05)
        raise AssertionError(f"not within {limit_s} s: {document}")

    @staticmethod
    def _result(answer: httpx.Response) -> dict[str, Any]:
        assert answer.status_code == 200, f"{answer.status_code}: {answer.text}"
        content: dict[str, Any] = answer.json()
        return content


def captures(document: dict[str, Any]) -> bool:
    """Whether the document is that of an instance whose capture runs."""
    return bool(document) and document["state"] == "running" and document["capture"]["state"] == "running"
