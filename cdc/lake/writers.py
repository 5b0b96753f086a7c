"""Who brought the changes of a table into the lake: batch, version of the Delta table, and run.

The commits of the Delta table tell it. Delta removes old ones; from there on the manifests of the acked batches tell
it, of which the last 1,000 are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cdc.base.run_identity import RunIdentity
from cdc.base.targets import GENERATION_PROPERTY, properties_for
from cdc.lake.delta.log import files_added, ledger_of, open_delta

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.config import DestinationConfig

_AIRFLOW_ADDRESS = "AIRFLOW__API__BASE_URL"
"""Airflow's own variable for the address of its pages."""
_TASK_PAGE = "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}?try_number={try}"


@dataclass(frozen=True)
class Writer:
    """What brought a change into the table. Each field is None if that is not known."""

    batch: int | None = None
    """None for jobs on a single table, which take changes outside batches."""
    delta_version: int | None = None
    rebuild: str | None = None
    """``snapshot`` or ``replay`` if the table was loaded as a whole, with the change in it."""
    run: RunIdentity | None = None

    def document(self, config: DestinationConfig) -> dict[str, Any]:
        """Returns keys for ``cdc history --json``."""
        return {
            "batch": self.batch,
            "delta_version": self.delta_version,
            "rebuild": self.rebuild,
            "run": None if self.run is None else self.run.document,
            "run_url": None if self.run is None else run_address(config, self.run),
        }


class Writers:
    """The writers of one table, by its commits and the manifests of acked batches."""

    def __init__(
        self,
        config: DestinationConfig,
        table: str,
        commits: Sequence[Mapping[str, Any]],
        generation: int,
        acked: Iterable[Manifest] = (),
    ) -> None:
        """``commits``: the table's history, newest first."""
        in_force, self._is_whole = _in_force(commits)
        self._commits = {int(commit["version"]): commit for commit in in_force}
        self._ledger = ledger_of(in_force, config.name, table)
        self._table, self._generation = table, generation
        self._acked = sorted(acked, key=lambda manifest: manifest.batch, reverse=True)

    @classmethod
    def of(cls, config: DestinationConfig, table: str, acked: Iterable[Manifest]) -> Writers:
        """Reads the commits of a table. Raises TargetError, RetryableError."""
        with open_delta(config.table_path(table), table) as delta:
            if delta is None:
                return cls(config, table, (), -1)
            properties = properties_for(delta.metadata().configuration, config.name, table)
            generation = int(properties.get(GENERATION_PROPERTY, "0"))
            return cls(config, table, delta.history(), generation, acked)

    def writer_of(self, seq: int) -> Writer:
        """Returns what brought the table's change in this transaction into the table as it is now."""
        for version, entry in self._ledger:
            rebuild = entry.get("rebuild")
            kind = str(rebuild.get("kind")) if isinstance(rebuild, dict) else None
            last_seq = int(entry["last_seq"])
            if kind is None:
                is_in = int(entry["first_seq"]) < seq <= last_seq
            else:  # a replay of a range leaves the rows before it alone
                is_in = seq <= last_seq and not (kind == "replay" and self._is_empty(version))
            if is_in:
                run = RunIdentity.of_document(entry.get("run"))
                return Writer(int(entry["batch"]) or None, version, kind, run)
        return self._by_manifest(seq) if self._is_whole else Writer()

    def _is_empty(self, version: int) -> bool:
        """Whether a commit only moved the table's position."""
        commit = self._commits[version]
        return commit.get("operation") == "MERGE" and files_added(commit) == 0

    def _by_manifest(self, seq: int) -> Writer:
        for manifest in self._acked:
            if not manifest.after_seq < seq <= manifest.last_seq or manifest.acked is None:
                continue
            result = next((result for result in manifest.acked.tables if result.table == self._table), None)
            if result is None or result.parked is not None or result.generation != self._generation:
                return Writer()
            return Writer(manifest.batch, result.delta_version, None, manifest.acked.run or manifest.run)
        return Writer()


def _in_force(commits: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """Returns the commits that make the table, newest first, without those that RESTORE has taken back; and whether no
    older one is in doubt, because a table was restored to a time rather than to a version."""
    in_force: list[dict[str, Any]] = []
    newest: int | None = None
    for commit in sorted(commits, key=lambda commit: int(commit.get("version", -1)), reverse=True):
        if newest is not None and int(commit.get("version", -1)) > newest:
            continue
        if commit.get("operation") == "RESTORE":
            version = str((commit.get("operationParameters") or {}).get("version"))
            if not version.isdecimal():
                return in_force, False
            newest = int(version)
            continue
        in_force.append(dict(commit))
    return in_force, True


def add_writers(changes: Sequence[dict[str, Any]], config: DestinationConfig, writers: Writers) -> None:
    """Adds to each change of ``cdc history --json`` what brought it into the table."""
    documents: dict[int, dict[str, Any]] = {}
    for change in changes:
        seq = change["seq"]
        if seq not in documents:
            documents[seq] = writers.writer_of(seq).document(config)
        change.update(documents[seq])


def run_address(config: DestinationConfig, run: RunIdentity, airflow: str | None = None) -> str | None:
    """Returns the address of a run's task in Airflow: by ``airflow.links.run``, else below ``airflow``, which is
    Airflow's own variable by default; None for a command, and if the address is not known."""
    base = (os.environ.get(_AIRFLOW_ADDRESS) or None) if airflow is None else airflow
    if run.dag_id is None or run.run_id is None or run.task_id is None:
        return None
    template = config.airflow.links.run
    if template is None and base is not None:
        template = base.rstrip("/").replace("{", "{{").replace("}", "}}") + _TASK_PAGE
    if template is None:
        return None
    values = {
        "destination": config.name,
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "task_id": run.task_id,
        "try": str(run.try_number or 1),
    }
    return template.format_map({name: quote(value, safe="") for name, value in values.items()})
