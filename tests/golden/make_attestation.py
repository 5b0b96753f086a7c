"""Makes ``attestation-v1``: a Delta table of two files, an attestation of it, and the public key that checks it.

python -m tests.golden.make_attestation
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cdc.config import load
from cdc.lake.attestation.envelope import seal
from cdc.lake.attestation.statement import make_statement
from tests.support.attestations import REPORT, make_lake
from tests.support.configurations import document

GOLDEN = Path(__file__).with_name("attestation-v1")


def main() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    GOLDEN.mkdir()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_lake(folder / "lake")
        file = folder / "conf" / "shop.yaml"
        file.parent.mkdir()
        file.write_text(document(apply__keys=["id"]))
        key = Ed25519PrivateKey.generate()
        (GOLDEN / "shop.attestation.json").write_bytes(seal(make_statement(load(file), REPORT), key))
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (GOLDEN / "shop.signing.pub.pem").write_bytes(public)
        shutil.copytree(folder / "lake", GOLDEN / "lake")


if __name__ == "__main__":
    main()
