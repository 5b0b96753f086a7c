"""Compares a statement with the Delta tables, long after the verification: with their logs and files alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cdc.base.errors import DamagedError, TargetError, UsageError
from cdc.base.validation import there_is
from cdc.lake.attestation.files import digests, read_version
from cdc.lake.attestation.statement import facts_of

State = Literal["intact", "changed", "unknown"]
_MOST_FILES = 20
"""Changed files of a table that are named."""
_FACTS = {
    "size_bytes": "size",
    "rows": "number of rows",
    "partition": "partition",
    "deleted_rows": "number of deleted rows",
    "deleted_sha256": "deleted rows",
}


@dataclass
class TableCheck:
    """The check of one table of a statement."""

    table: str
    path: str
    version: int | None
    """None: the table had no Delta table when it was verified."""
    verified: str
    """The state of the table in the statement: proved, partial, differs or unknown."""
    files: int = 0
    newest_version: int | None = None
    faults: list[str] = field(default_factory=list)
    """Differences from what was signed."""
    unknown: list[str] = field(default_factory=list)
    """Reasons why something could not be checked."""

    @property
    def state(self) -> State:
        return "changed" if self.faults else "unknown" if self.unknown else "intact"


def exit_code(statement: Mapping[str, Any], checks: Sequence[TableCheck]) -> int:
    """0: all tables are as they were signed, and they were proved. 2: something was changed, or differed from the
    source already. 1: it could not be told, or not everything was proved."""
    states = {check.state for check in checks}
    verified = {check.verified for check in checks} | {statement["predicate"]["state"]}
    if "changed" in states or "differs" in verified:
        return 2
    return 0 if states == {"intact"} and verified == {"proved"} else 1


def check_tables(
    statement: Mapping[str, Any],
    target: str | None = None,
    tables: Sequence[str] = (),
    progress: Callable[[str], object] = lambda _: None,
) -> list[TableCheck]:
    """Compares the tables of a statement, or some of them, with the files that they have at the version that was
    verified. ``target``: the folder or URI of the tables, if they lie elsewhere now.

    Raises UsageError for a table that the statement does not name, RetryableError if a table cannot be read.
    """
    entries = {entry["table"]: entry for entry in statement["predicate"]["tables"]}
    for name in tables:
        if name not in entries:
            raise UsageError(f"the attestation has no table {name}", remedy=there_is(name, entries))
    subjects: dict[str, dict[str, Any]] = {name: {} for name in entries}
    for subject in statement["subject"]:
        facts = dict(subject["annotations"])
        subjects[facts.pop("table")][facts["path"]] = facts | {"sha256": subject["digest"]["sha256"]}
    checks = []
    for name in tables or entries:
        progress(f"reading the files of {name}")
        checks.append(_check(entries[name], subjects[name], target))
    return checks


def _check(entry: Mapping[str, Any], signed: Mapping[str, Mapping[str, Any]], target: str | None) -> TableCheck:
    name, delta = entry["table"], entry["delta"]
    path = "" if delta is None else delta["location"]
    if target is not None and path:
        path = "/".join([target.rstrip("/"), *path.rsplit("/", 2)[-2:]])
    check = TableCheck(name, path, entry["delta_version"], entry["state"], len(signed))
    if delta is None:
        check.unknown.append("it had no Delta table when it was verified")
        return check
    keys = {key for facts in signed.values() for key in facts["keys"]}
    try:
        present = read_version(path, name, entry["delta_version"], keys)
    except TargetError as error:
        check.unknown.append(str(error))
        return check
    except DamagedError as error:
        check.faults.append(str(error))
        return check
    check.newest_version = present.newest_version
    if present.delta_id != delta["id"]:
        check.faults.append(f"another table lies at {path}: its id is {present.delta_id}, and {delta['id']} was signed")
        return check
    if present.schema_sha256 != delta["schema_sha256"]:
        check.faults.append("the log has another schema for this version")
    missing, added = signed.keys() - present.files.keys(), present.files.keys() - signed.keys()
    faults = [f"the log does not have {_file(signed[file_path])} in this version" for file_path in sorted(missing)]
    faults += [
        f"the log has {_file(facts_of(present.files[file_path]))} in this version, which was not signed"
        for file_path in sorted(added)
    ]
    both = sorted(signed.keys() & present.files.keys())
    for file_path in both:
        facts = facts_of(present.files[file_path])
        changed = [words for fact, words in _FACTS.items() if facts[fact] != signed[file_path][fact]]
        if changed:
            faults.append(f"the log has another {', '.join(changed)} for {_file(signed[file_path])}")
    removed = 0
    for file_path, digest in digests(path, both):
        if digest is None:
            removed += 1
        elif digest != signed[file_path]["sha256"]:
            faults.append(f"{_file(signed[file_path])} was changed: its SHA-256 is {digest}")
    if removed and present.newest_version == check.version:
        faults.append(f"{removed} of {len(signed)} files are gone, and it is the newest version")
    elif removed:
        check.unknown.append(
            f"{removed} of {len(signed)} files are gone; VACUUM removes those that newer versions do not need"
        )
    check.faults += faults[:_MOST_FILES]
    if len(faults) > _MOST_FILES:
        check.faults.append(f"and {len(faults) - _MOST_FILES} more")
    return check


def _file(facts: Mapping[str, Any]) -> str:
    """Returns a file, and which rows it holds."""
    ranges = [f"{name} from {least} to {greatest}" for name, (least, greatest) in facts["keys"].items()]
    ranges += [f"{name} {'NULL' if value is None else value}" for name, value in facts["partition"].items()]
    rows = "rows" if facts["rows"] is None else f"{facts['rows']:,} rows"
    return f"{facts['path']} ({rows}{': ' if ranges else ''}{', '.join(ranges)})"
