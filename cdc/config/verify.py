"""``verify``: what `cdc verify` needs besides the two sides that it compares."""

from __future__ import annotations

from typing import Annotated, ClassVar

from cdc.config.secret_source import Secret
from cdc.config.values import Command, Doc, FilePath, Section


class VerifyConfig(Section):
    """The key that signs attestations (`cdc verify --attest`): an Ed25519 private key in PEM without a passphrase, as
    `openssl genpkey -algorithm ed25519` makes it."""

    signing_key_env: str | None = None
    """Environment variable that holds the key."""
    signing_key_file: Annotated[FilePath | None, Doc(example="shop.signing.pem", instead_of="signing_key_env")] = None
    """File that holds the key. A relative path is taken from the folder of this file."""
    signing_key_command: Annotated[
        Command | None,
        Doc(
            example=["vault", "kv", "get", "-field=key", "secret/shop-signing"],
            instead_of="signing_key_env or signing_key_file",
        ),
    ] = None
    """Program and arguments that print the key, within 30 s. It is run without a shell."""

    signing_key: ClassVar = Secret("verify", "the key that signs attestations")
