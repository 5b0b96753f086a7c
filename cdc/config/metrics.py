"""``metrics``: where capture serves its metrics, and where runs push theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field, field_validator

from cdc.config.secret_source import Secret
from cdc.config.values import Doc, DurationS, FilePath, FilledText, Section, Whole, require_http


class MetricsConfig(Section):
    """Metrics in the form of Prometheus. They need the package `towpath[metrics]`."""

    port: Whole | None = Field(default=None, ge=1, le=65535)
    """Port at which a capture serves `/metrics` and `/health`; null means that it serves neither. `cdc capture
    --metrics-port` takes precedence."""
    host: FilledText = "0.0.0.0"
    """Address of this machine at which they are served; `127.0.0.1` admits this machine only."""
    unhealthy_after: DurationS = 60.0
    """Time without a connection to the source after which `/health` answers 503, and after which the capture DAG with
    `airflow.capture: external` counts a capture as dead or stuck."""
    push: Annotated[str | None, Doc(example="http://pushgateway.example:9091")] = None
    """URL of a Prometheus Pushgateway that gets the metrics of each run; null means that none gets them. A gateway that
    cannot be reached is logged and fails no run."""
    push_timeout: DurationS = 5.0
    """How long a run waits for the Pushgateway."""
    push_user: str | None = None
    """User for a Pushgateway that asks for one."""
    push_password_env: str | None = None
    """Environment variable that holds the password of `push_user`."""
    push_password_file: Annotated[FilePath | None, Doc(instead_of="push_password_env")] = None
    """File whose first line is the password of `push_user`. A relative path is taken from the folder of this file."""

    push_password: ClassVar = Secret("metrics", "the password of {0.push_user!r}")

    @field_validator("push")
    @classmethod
    def _push(cls, push: str | None) -> str | None:
        if push is None:
            return None
        require_http(
            push,
            otherwise="is not a URL; write http://pushgateway.example:9091",
            with_secrets="must not hold a user or a password; use push_user and push_password_env",
            path=True,
        )
        return push

    def _contradictions(self) -> Iterator[str]:
        keys = [name for name in type(self).model_fields if name.startswith("push_") and name in self.model_fields_set]
        if self.push is None and keys:
            yield f"{keys[0]} has no effect without push; remove it, or add push: URL"
        if self.push_password.is_given != (self.push_user is not None):
            yield "push_user and its password belong together; give both, or neither"
