"""`cdc verify --attest` and `cdc attest check`: what is signed, and that every change of a file, of the log or of the
document is noticed and named, long after the verification and without source, store and Spark."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from deltalake import DeltaTable

from cdc.cli.main import main
from cdc.config import load
from cdc.lake.delta.sql import quote
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing

Database = Callable[[Server], str]
Cdc = Callable[..., Any]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def cdc(capsys: pytest.CaptureFixture[str]) -> Cdc:
    """Runs a command. Returns its document, or its error message, after checking its exit code."""

    def run(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        exit_code = main([*words])
        said = capsys.readouterr()
        assert exit_code == code, said.out + said.err
        return json.loads(said.out) if said.out else said.err

    return run


def write_keys(folder: Path, name: str) -> Path:
    """Writes a pair of keys, and returns the public one's path."""
    key = Ed25519PrivateKey.generate()
    (folder / f"{name}.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = folder / f"{name}.pub.pem"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return public


class Attested:
    """A destination with three tables whose verification is signed."""

    def __init__(self, folder: Path, server: Server, db: str, cdc: Cdc) -> None:
        self.cdc, self.folder = cdc, folder
        self.loop = Loop(
            folder, server, db, apply="deletion_vectors: true",
            overrides="DB.orders: {partition_by: [day]}, DB.log: {mode: append}",
        )  # fmt: skip
        self.loop.sql(
            "CREATE TABLE orders (id INT, day DATE, v VARCHAR(20), PRIMARY KEY (id, day))",
            "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(40))",
            "CREATE TABLE log (id INT, v VARCHAR(20))",
            *(f"INSERT INTO orders VALUES ({n}, '2026-0{1 + n % 2}-01', 'v{n}')" for n in range(6)),
            "INSERT INTO people VALUES (1, 'a'), (2, 'b'), (3, 'c')",
            "INSERT INTO log VALUES (1, 'x'), (1, 'x')",
        )
        self.loop.capture()
        self.loop.apply_all()
        self.public = write_keys(folder, "auditor")
        with self.loop.config.file.open("a") as file:
            file.write(f"verify: {{signing_key_file: {folder / 'auditor.pem'}}}\n")
        self.loop.config = load(self.loop.config.file)
        self.file = folder / "shop.attestation.json"

    def verify(self, *words: str, code: int = 0) -> Any:
        conf = str(self.loop.config.file.parent)
        with capturing(self.loop.config):
            return self.cdc("--conf-dir", conf, "verify", "shop", "--attest", str(self.file), *words, code=code)

    def check(self, *words: str, code: int = 0, key: Path | None = None) -> Any:
        return self.cdc("attest", "check", str(self.file), "--key", str(key or self.public), *words, code=code)

    def states(self, code: int, *words: str) -> dict[str, str]:
        """Returns the state of each table by its name without the database."""
        document = self.check("--json", *words, code=code)
        return {table["table"].partition(".")[2]: table["state"] for table in document["tables"]}

    def faults(self, table: str, code: int = 2) -> str:
        document = self.check("--json", code=code)
        entry = next(entry for entry in document["tables"] if entry["table"].endswith(f".{table}"))
        return "\n".join([*entry["faults"], *entry["unknown"]])

    def files(self, table: str) -> list[Path]:
        return sorted(path for path in self.loop.path(table).rglob("*.parquet") if "_delta_log" not in path.parts)

    def in_lake(self, table: str, statement: str) -> None:
        spark = session.acquire(self.loop.config.spark).spark
        spark.sql(statement.format(f"delta.{quote(str(self.loop.path(table)))}"))


@pytest.fixture
def attested(tmp_path: Path, mysql9: Server, database: Database, cdc: Cdc) -> Attested:
    return Attested(tmp_path, mysql9, database(mysql9), cdc)


def test_every_change_of_tables_and_document_is_named(attested: Attested, tmp_path: Path, mysql9: Server) -> None:
    report = attested.verify("--json")
    assert (report["state"], len(report["tables"])) == ("proved", 3)
    document = attested.check("--json")
    assert (document["ok"], document["verified"], document["destination"]) == (True, "proved", "shop")
    intact = {"orders": "intact", "people": "intact", "log": "intact"}
    assert attested.states(0) == intact
    text = attested.file.read_text()
    envelope = json.loads(text)
    statement = json.loads(b64decode(envelope["payload"]))
    tables = {entry["table"].partition(".")[2]: entry for entry in statement["predicate"]["tables"]}
    assert {name: entry["rows"] for name, entry in tables.items()} == {"orders": 6, "people": 3, "log": 2}
    assert statement["predicate"]["source"]["server_uuid"] in tables["people"]["checksums"]["gtids"]
    assert tables["people"]["checksums"]["sum"] > 0

    # One byte of each file, one after another.
    for table in intact:
        for path in attested.files(table):
            data = path.read_bytes()
            path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
            assert attested.states(2) == intact | {table: "changed"}
            said = attested.faults(table)
            assert path.name in said and "was changed: its SHA-256 is" in said, said
            assert table != "people" or "3 rows: id from 1 to 3" in said, said
            assert table != "orders" or ("3 rows: id from " in said and "day 2026-0" in said), said
            path.write_bytes(data)
    path.unlink()
    assert " files are gone, and it is the newest version" in attested.faults("log")
    path.write_bytes(data)

    # The log, in this version and with the other table's history.
    commit = max((attested.loop.path("people") / "_delta_log").glob("*.json"))
    original = commit.read_text()
    commit.write_text(original.replace('\\"numRecords\\":3', '\\"numRecords\\":4'))
    assert "the log has another number of rows for" in attested.faults("people")
    commit.write_text(original)
    log = attested.loop.path("log")
    moved = log.rename(tmp_path / "aside")
    assert "there is no Delta table" in attested.faults("log", code=1)
    shutil.copytree(attested.loop.path("people"), log)
    assert "another table lies at" in attested.faults("log")
    shutil.rmtree(log)
    moved.rename(log)

    # The document: one byte of the payload, another key, the signature of nobody, another document.
    changed = json.dumps(statement).replace('"state": "proved"', '"state": "Proved"').encode()
    attested.file.write_text(json.dumps(envelope | {"payload": b64encode(changed).decode()}))
    assert "was changed after it was signed: the signature does not fit" in attested.check(code=2)
    attested.file.write_text(json.dumps(envelope | {"signatures": []}))
    assert "is signed by nobody" in attested.check(code=2)
    attested.file.write_text(text)
    assert "Give the public key of the one who signed it" in attested.check(code=2, key=write_keys(tmp_path, "other"))
    assert "exists already" in attested.verify(code=2)
    assert "has no table shop.nothing" in attested.check("shop.nothing", code=2)

    # The tables go on, also with vectors, and lie elsewhere.
    shutil.copytree(attested.loop.path("people").parent.parent, tmp_path / "copy")
    attested.loop.sql("UPDATE people SET name = 'B' WHERE id = 2", "DELETE FROM orders WHERE id < 2")
    attested.loop.capture()
    attested.loop.apply_all()
    assert attested.states(0) == intact
    assert attested.states(0, "--target", str(tmp_path / "copy")) == intact
    DeltaTable(attested.loop.path("people")).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert "files are gone; VACUUM removes those" in attested.faults("people", code=1)
    assert attested.states(1) == intact | {"people": "unknown"}
    assert attested.states(0, f"{attested.loop.db}.orders") == {"orders": "intact"}


def test_deletion_vectors_and_differences_are_signed(attested: Attested) -> None:
    attested.in_lake("people", "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    attested.in_lake("people", "DELETE FROM {} WHERE id = 2")
    report = attested.verify("--json", code=2)
    assert report["state"] == "differs"
    document = attested.check("--json", code=2)
    verified = {table["table"].partition(".")[2]: (table["state"], table["verified"]) for table in document["tables"]}
    assert verified == {"people": ("intact", "differs"), "orders": ("intact", "proved"), "log": ("intact", "proved")}
    payload = b64decode(json.loads(attested.file.read_text())["payload"]).decode()
    assert '"differences":1' in payload and '"deleted_rows":1' in payload
    (vectors,) = attested.loop.path("people").glob("deletion_vector_*.bin")
    data = vectors.read_bytes()
    vectors.write_bytes(data[:-6] + bytes([data[-6] ^ 1]) + data[-5:])
    said = attested.faults("people")
    assert "deletion vectors of version" in said or "another deleted rows" in said, said


def test_nothing_is_compared_without_a_key(attested: Attested, tmp_path: Path) -> None:
    text = attested.loop.config.file.read_text()
    for key, message in (
        ("signing_key_env: TOWPATH_NO_SUCH_KEY", "the environment variable TOWPATH_NO_SUCH_KEY is not set"),
        (f"signing_key_file: {tmp_path / 'auditor.pub.pem'}", "is not a PEM private key without a passphrase"),
        ("", "there is no key to sign an attestation with"),
    ):
        attested.loop.config.file.write_text(text.partition("verify:")[0] + (f"verify: {{{key}}}\n" if key else ""))
        assert message in attested.verify(code=2)
    assert not attested.file.exists()
