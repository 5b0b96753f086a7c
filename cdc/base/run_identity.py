"""Who works: the task of a DAG run, or a command on a host. Commits to Delta tables and manifests carry it.

It is determined in the process where the task runs. A server that works for a client, and a driver that works for the
process that started it, have the identity that they were told.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST_CHARACTERS = 250
"""Longer texts are cut. Airflow's own ids have no more."""
_AIRFLOW = "AIRFLOW_CTX_"
"""How the names of the variables begin that Airflow sets for each try of a task."""


def _text(value: Any) -> Any:
    """Returns a text that every reader of UTF-8 takes, without what exceeds the limit."""
    if not isinstance(value, str):
        return value
    valid = value.encode("utf-8", "surrogateescape" if _is_from_bytes(value) else "replace").decode("utf-8", "replace")
    return valid if len(valid) <= MOST_CHARACTERS else valid[: MOST_CHARACTERS - 1] + "…"


def _is_from_bytes(value: str) -> bool:
    """Whether all surrogates of a text stand for bytes, as in the environment of a process."""
    return all(not "\ud800" <= character <= "\udfff" or "\udc80" <= character <= "\udcff" for character in value)


_Text = Annotated[str, BeforeValidator(_text)]


class RunIdentity(BaseModel):
    """The try of a task in a DAG run, or a command; both if a task calls the command."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True, serialize_by_alias=True)

    dag_id: _Text | None = Field(default=None, description="Airflow's id of the DAG; null outside Airflow.")
    task_id: _Text | None = Field(default=None, description="Airflow's id of the task; null outside Airflow.")
    run_id: _Text | None = Field(default=None, description="Airflow's id of the DAG run; null outside Airflow.")
    try_number: int | None = Field(
        default=None, alias="try", description="Number of the task's try, from 1; null outside Airflow."
    )
    host: _Text | None = Field(default=None, description="Name of the host where the task or command ran.")
    command: _Text | None = Field(
        default=None, description="The command without its arguments, like `cdc apply`; null for an operator of a DAG."
    )
    started: _Text | None = Field(
        default=None, description="When the process of the command began, ISO 8601, UTC; null for an operator of a DAG."
    )

    @classmethod
    def of_document(cls, document: Any) -> RunIdentity | None:
        """Reads the ``run`` of a commit's user metadata; None if it is absent or is something else."""
        try:
            return cls.model_validate(document) if isinstance(document, dict) else None
        except ValueError:
            return None

    @property
    def document(self) -> dict[str, Any]:
        """The identity for JSON, without what does not apply."""
        return self.model_dump(exclude_none=True)

    def __str__(self) -> str:
        """Returns a text like ``apply_shop, scheduled__2026-03-01T09:00:00+00:00, merge, try 2``."""
        parts = [self.dag_id, self.run_id, self.task_id]
        if self.try_number is not None:
            parts.append(f"try {self.try_number}")
        if self.command is not None or self.dag_id is None:
            parts.append(" on ".join(part for part in (self.command, self.host) if part))
        return ", ".join(part for part in parts if part)


_STARTED = datetime.now(UTC).isoformat(timespec="seconds")
_OWN = RunIdentity()
_client: ContextVar[RunIdentity | None] = ContextVar("client", default=_OWN)
"""The client of a server that this thread works for; None if it has not said who it is; :data:`_OWN`: none."""
_starter: RunIdentity | None = None
"""The process that this one works for."""
_command: str | None = None


def current_run() -> RunIdentity | None:
    """Returns who works in this thread; None for a client of a server that has not told it."""
    client = _client.get()
    if client is not _OWN:
        return client
    return _of_process() if _starter is None else _starter


@contextmanager
def working_for(client: RunIdentity | None) -> Iterator[None]:
    """Lets this thread work for a client inside the block; None: for one that has not said who it is."""
    token = _client.set(client)
    try:
        yield
    finally:
        _client.reset(token)


def work_for_starter(starter: RunIdentity | None) -> None:
    """Lets all threads of this process work for the process that started it."""
    global _starter
    _starter = starter


def remember_command(command: str) -> None:
    """Makes the command known that this process runs: its words without arguments, which may hold tokens."""
    global _command
    _command = command


def airflow_task(dag_id: str | None, run_id: str | None, task_id: str | None, try_number: int | None) -> RunIdentity:
    """Returns the identity of this process as the work of a task's try; of no task if ``dag_id`` is None."""
    command = _command or (None if dag_id else _program())
    return RunIdentity(
        dag_id=dag_id,
        task_id=task_id,
        run_id=run_id,
        try_number=try_number,
        host=socket.gethostname(),
        command=command,
        started=None if command is None else _STARTED,
    )


def _of_process() -> RunIdentity:
    """Returns the identity of this process. The environment is read each time, since several tasks may run in it, one
    after the other."""
    dag_id, run_id, task_id = (
        os.environ.get(f"{_AIRFLOW}{name}") or None for name in ("DAG_ID", "DAG_RUN_ID", "TASK_ID")
    )
    number = os.environ.get(f"{_AIRFLOW}TRY_NUMBER", "")
    is_number = number.isascii() and number.isdigit() and len(number) < 10
    return airflow_task(dag_id, run_id, task_id, int(number) if is_number else None)


def _program() -> str | None:
    """Returns the name of the program that this process runs, without its arguments."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    return Path(sys.argv[0]).name or None if sys.argv else None
