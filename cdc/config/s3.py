"""``s3``: the object store of a lake at ``s3a://`` or ``s3://``, as Spark and this process reach it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import field_validator

from cdc.config.secret_source import Secret
from cdc.config.values import Doc, FilePath, FilledText, Section, require_http

LogStore = Literal["conditional_put", "single_driver"]


class S3Config(Section):
    """Access to the S3 bucket of `apply.target`, for Spark and for the process that reads the tables' logs. Without
    keys both look for credentials themselves: in Amazon's environment variables, and in the role of the machine."""

    endpoint: Annotated[str | None, Doc(example="https://minio.example:9000", only_with="apply.target: s3a://…")] = None
    """URL of the object store; null means Amazon's own."""
    region: FilledText | None = None
    """Region of the bucket; null leaves it to the environment, or to Amazon's default."""
    path_style: bool | None = None
    """Whether requests name the bucket in their path and not in the host's name; null means yes with an `endpoint`."""
    access_key_id: FilledText | None = None
    """Id of the access key."""
    secret_access_key_env: str | None = None
    """Environment variable that holds the secret of `access_key_id`."""
    secret_access_key_file: Annotated[FilePath | None, Doc(instead_of="secret_access_key_env")] = None
    """File whose first line is the secret of `access_key_id`. A relative path is taken from the folder of this file."""
    session_token_env: str | None = None
    """Environment variable that holds the session token of a temporary access key."""
    log_store: Annotated[
        LogStore,
        Doc(
            choices={
                "conditional_put": "the object store refuses a commit whose name is taken, so any number of drivers "
                "may write; a store that does not refuse it is itself refused",
                "single_driver": "nothing guards the commits: you see to it that there is only ever one driver, and "
                "no orphan of one, that writes to the tables",
            }
        ),
    ] = "conditional_put"
    """Guard of the tables' logs against two drivers that commit at once."""

    secret_access_key: ClassVar = Secret("s3", "the secret of the access key {0.access_key_id}")
    session_token: ClassVar = Secret("s3", "the session token of the access key {0.access_key_id}")

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        require_http(
            endpoint,
            otherwise="is not the URL of an object store; write https://minio.example:9000",
            with_secrets="must not hold a key or a secret; use access_key_id and secret_access_key_env",
        )
        return endpoint.rstrip("/")

    def _contradictions(self) -> Iterator[str]:
        if self.secret_access_key.is_given != (self.access_key_id is not None):
            yield "access_key_id and its secret belong together; give both, or neither"
        if self.session_token_env is not None and self.access_key_id is None:
            yield "session_token_env has no effect without access_key_id; remove it, or give the key"

    @property
    def has_path_style(self) -> bool:
        return self.endpoint is not None if self.path_style is None else self.path_style


def is_s3(uri: str) -> bool:
    """Whether a URI names an object in S3."""
    return uri.startswith(("s3a://", "s3://"))
