"""Attestations without a server and Spark: keys, envelopes, statements of this and other formats, and the check."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode, b64encode
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from cdc.base.errors import ConfigError, DamagedError, StorageError, UsageError, VersionError
from cdc.config import DestinationConfig, load
from cdc.lake.attestation.check import check_tables, exit_code
from cdc.lake.attestation.envelope import PAYLOAD_TYPE, read_public_key, seal, signing_key, unseal
from cdc.lake.attestation.statement import PREDICATE_TYPE, make_statement, require_readable
from tests.support.attestations import REPORT, TABLE, make_lake
from tests.support.configurations import document

GOLDEN = Path(__file__).parents[3] / "golden" / "attestation-v1"


def configured(folder: Path, **changes: Any) -> DestinationConfig:
    file = folder / "conf" / "shop.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(document(apply__keys=["id"], **changes))
    return load(file)


def pem(key: Any, encryption: KeySerializationEncryption | None = None) -> bytes:
    content: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())
    return content


def test_an_attestation_of_version_1_is_read_and_its_table_is_intact(tmp_path: Path) -> None:
    statement = unseal(GOLDEN / "shop.attestation.json", read_public_key(GOLDEN / "shop.signing.pub.pem"))
    require_readable(statement, "here")
    (check,) = check_tables(statement, str(GOLDEN / "lake"))
    assert (check.table, check.state, check.verified, check.version, check.newest_version, check.files) == (
        TABLE, "intact", "proved", 1, 1, 2,
    )  # fmt: skip
    assert exit_code(statement, [check]) == 0


@pytest.fixture
def statement(tmp_path: Path) -> dict[str, Any]:
    make_lake(tmp_path / "lake")
    return make_statement(configured(tmp_path), REPORT)


def test_what_a_statement_says(statement: dict[str, Any], tmp_path: Path) -> None:
    predicate = statement["predicate"]
    assert (predicate["state"], predicate["source"], predicate["destination"]) == ("proved", None, "shop")
    (table,) = predicate["tables"]
    assert table["delta"]["location"] == str(tmp_path / "lake" / "shop" / "people")
    assert (table["checksums"]["sum"], table["checksums"]["differences"]) == (99, 0)
    facts = [subject["annotations"] for subject in statement["subject"]]
    assert sorted(((fact["partition"], fact["keys"], fact["rows"]) for fact in facts), key=lambda fact: fact[2]) == [
        ({"town": None}, {"id": ["7", "7"]}, 1),
        ({"town": "a b:c/d%é"}, {"id": ["1", "2"]}, 2),
    ]
    assert all((tmp_path / "lake/shop/people" / fact["path"]).is_file() for fact in facts)
    assert all(subject["name"] == f"{TABLE}/{subject['annotations']['path']}" for subject in statement["subject"])


@pytest.mark.parametrize(
    ("place", "value", "fault"),
    [
        (("tables", 0, "delta", "id"), "other", "another table lies at"),
        (("tables", 0, "delta", "schema_sha256"), "other", "the log has another schema for this version"),
        (("subject", 0, "annotations", "rows"), 77, "the log has another number of rows for"),
        (("subject", 0, "annotations", "partition"), {"town": "b"}, "the log has another partition for"),
        (("subject", 0, "annotations", "deleted_rows"), 1, "the log has another number of deleted rows for"),
        (("subject", 0, "digest", "sha256"), "0" * 64, "was changed: its SHA-256 is"),
        (("subject", 0, "annotations", "path"), "x.parquet", "the log does not have x.parquet"),
    ],
)
def test_each_fact_is_compared(
    statement: dict[str, Any], place: tuple[str | int, ...], value: object, fault: str
) -> None:
    changed = deepcopy(statement)
    entry: Any = changed if place[0] == "subject" else changed["predicate"]
    for name in place[:-1]:
        entry = entry[name]
    entry[place[-1]] = value
    (check,) = check_tables(changed)
    assert check.state == "changed" and any(fault in line for line in check.faults), check
    assert exit_code(changed, [check]) == 2


def test_what_cannot_be_told(statement: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "lake" / "shop" / "people"
    changed = deepcopy(statement)
    changed["predicate"]["tables"][0]["delta_version"] = 9
    (check,) = check_tables(changed)
    assert check.state == "unknown" and "version 9 cannot be read any more; the newest is 1" in check.unknown[0]
    assert exit_code(changed, [check]) == 1
    changed["predicate"]["tables"][0]["delta"] = None
    assert check_tables(changed)[0].unknown == ["it had no Delta table when it was verified"]
    shutil.rmtree(folder)
    (check,) = check_tables(statement)
    assert check.state == "unknown" and "there is no Delta table" in check.unknown[0]
    for state, code in (("proved", 0), ("partial", 1), ("unknown", 1), ("differs", 2)):
        changed["predicate"]["state"] = state
        assert exit_code(changed, []) == (code or 1)  # no table was checked
        check.unknown.clear()
        check.verified = state
        assert exit_code(changed, [check]) == code
    with pytest.raises(UsageError, match=r"no table shop\.peopel"):
        check_tables(statement, tables=["shop.peopel"])


def test_a_signature_that_does_not_fit(statement: dict[str, Any], tmp_path: Path) -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    path = tmp_path / "shop.json"
    path.write_bytes(seal(statement, key))
    assert unseal(path, key.public_key()) == statement
    envelope = json.loads(path.read_text())
    with pytest.raises(UsageError, match=r"is signed by .*, not by .*Give the public key of the one who signed it"):
        unseal(path, other.public_key())
    path.write_text(json.dumps(envelope | {"payload": b64encode(b64decode(envelope["payload"]) + b" ").decode()}))
    with pytest.raises(DamagedError, match="was changed after it was signed"):
        unseal(path, key.public_key())
    for text in (
        "", "[]", "{}", "no", json.dumps(envelope | {"payload": "§"}), json.dumps(envelope | {"signatures": [1]}),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(UsageError, match="is not an attestation"):
            unseal(path, key.public_key())
    path.write_text(json.dumps(envelope | {"payloadType": "text/plain"}))
    with pytest.raises(UsageError, match="holds a text/plain"):
        unseal(path, key.public_key())
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        unseal(tmp_path / "nothing", key.public_key())
    # The signature covers the type and both lengths.
    assert b64decode(envelope["signatures"][0]["sig"]) == key.sign(
        b"DSSEv1 %d %b " % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode())
        + b"%d " % len(b64decode(envelope["payload"]))
        + b64decode(envelope["payload"])
    )


def test_statements_of_others_and_of_later_formats(statement: dict[str, Any]) -> None:
    require_readable(statement, "here")
    with pytest.raises(VersionError, match=r"verification:2, and this version of Towpath reads .*a newer Towpath"):
        require_readable(statement | {"predicateType": PREDICATE_TYPE.replace(":1", ":2")}, "here")
    with pytest.raises(UsageError, match="is not a statement on Delta tables but https://slsa"):
        require_readable(statement | {"predicateType": "https://slsa.dev/provenance/v1"}, "here")


def test_keys_that_cannot_sign_or_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Ed25519PrivateKey.generate()
    file = tmp_path / "conf" / "key.pem"
    config = configured(tmp_path, verify={"signing_key_file": "key.pem"})
    for content, message in (
        (b"", "is not a PEM private key without a passphrase"),
        (pem(key, BestAvailableEncryption(b"secret")), "is not a PEM private key without a passphrase"),
        (pem(generate_private_key(65537, 2048)), "is not an Ed25519 key"),
    ):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"verify\.signing_key_file: .*{message}"):
            signing_key(config)
    file.write_bytes(pem(key))
    assert pem(signing_key(config)) == pem(key)
    monkeypatch.setenv("TOWPATH_TEST_SIGNING_KEY", pem(key).decode())
    assert pem(signing_key(configured(tmp_path, verify={"signing_key_env": "TOWPATH_TEST_SIGNING_KEY"}))) == pem(key)
    assert pem(signing_key(configured(tmp_path, verify={"signing_key_command": ["cat", str(file)]}))) == pem(key)
    with pytest.raises(ConfigError, match="there is no key to sign an attestation with"):
        signing_key(configured(tmp_path))

    with pytest.raises(UsageError, match="is not a PEM public key"):
        read_public_key(file)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_public_key(tmp_path / "nothing")
    public = generate_private_key(65537, 2048).public_key()
    file.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(UsageError, match="is not an Ed25519 public key"):
        read_public_key(file)
