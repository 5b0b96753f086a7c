"""The envelope of a statement: DSSE with one Ed25519 signature.

The protocol is that of https://github.com/secure-systems-lab/dsse (``envelope.md``, ``protocol.md``): what is signed is
the payload's bytes with its type and both lengths, so that no JSON has to be written twice alike.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from cdc.base.errors import ConfigError, DamagedError, StorageError, UsageError
from cdc.config import DestinationConfig

PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MAKE_KEY = "Make a key with: openssl genpkey -algorithm ed25519 -out shop.signing.pem"
_MAKE_PUBLIC = "Make it with: openssl pkey -in shop.signing.pem -pubout"


def signing_key(config: DestinationConfig) -> Ed25519PrivateKey:
    """Returns the key of ``verify.signing_key_*``. Raises ConfigError if there is none, or it cannot be used."""
    source = config.verify.signing_key
    content = source.content()
    if content is None:
        raise ConfigError(
            "there is no key to sign an attestation with",
            place=str(config.file),
            remedy=f"Name one with verify.signing_key_env or verify.signing_key_file. {_MAKE_KEY}",
        )
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError):  # TypeError: it has a passphrase
        raise source.error(f"{source.what} is not a PEM private key without a passphrase", _MAKE_KEY) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise source.error(f"{source.what} is not an Ed25519 key", _MAKE_KEY)
    return key


def read_public_key(path: Path) -> Ed25519PublicKey:
    """Reads a public key in PEM. Raises UsageError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", place=str(path), remedy=_MAKE_PUBLIC) from None
    try:
        key = load_pem_public_key(content)
    except ValueError:
        raise UsageError("is not a PEM public key", place=str(path), remedy=_MAKE_PUBLIC) from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError("is not an Ed25519 public key", place=str(path), remedy=_MAKE_PUBLIC)
    return key


def key_id(key: Ed25519PublicKey) -> str:
    """Returns the SHA-256 of the public key in DER, in hexadecimal digits."""
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def seal(statement: dict[str, Any], key: Ed25519PrivateKey) -> bytes:
    """Returns a signed envelope as JSON."""
    payload = json.dumps(statement, ensure_ascii=False, separators=(",", ":")).encode()
    signature = {"keyid": key_id(key.public_key()), "sig": b64encode(key.sign(_signed_bytes(payload))).decode()}
    document = {"payloadType": PAYLOAD_TYPE, "payload": b64encode(payload).decode(), "signatures": [signature]}
    return json.dumps(document, indent=1).encode() + b"\n"


def unseal(path: Path, key: Ed25519PublicKey) -> dict[str, Any]:
    """Reads an envelope, and returns its statement if the key has signed it. Raises UsageError for another file and for
    another key's signature, DamagedError for a signature that does not fit, StorageError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from None
    try:
        document = json.loads(content)
        payload_type = document["payloadType"]
        payload = b64decode(document["payload"], validate=True)
        signatures = [(str(item.get("keyid", "")), b64decode(item["sig"])) for item in document["signatures"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError("is not an attestation", place=str(path), remedy="cdc verify --attest writes one.") from None
    if payload_type != PAYLOAD_TYPE:
        raise UsageError(f"holds a {payload_type}, not a statement of in-toto", place=str(path))
    for _, signature in signatures:  # the id of a key is a hint, which nothing protects
        try:
            key.verify(signature, _signed_bytes(payload))
        except InvalidSignature:
            continue
        statement: dict[str, Any] = json.loads(payload)
        return statement
    own_id = key_id(key)
    others = sorted({name for name, _ in signatures} - {own_id})
    if len(others) == len(signatures):
        raise UsageError(
            f"is signed by {', '.join(others) or 'nobody'}, not by {own_id}",
            place=str(path),
            remedy="Give the public key of the one who signed it, if you trust that key.",
        )
    raise DamagedError("was changed after it was signed: the signature does not fit", place=str(path))


def _signed_bytes(payload: bytes) -> bytes:
    """Returns DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
