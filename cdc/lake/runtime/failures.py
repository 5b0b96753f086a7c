"""Errors on their way to the user: from Python workers to the driver, and from Spark's and Java's exceptions to one
sentence that says whether trying again may help."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import cdc.base.errors
from cdc.base.errors import CdcError, MergeFailedError, PermanentError, TargetError
from cdc.base.log import get_logger

SHARED_ATTEMPTS = 20
"""Attempts to write into a table that other destinations write, too. Each failed one is a commit of another member."""
_T = TypeVar("_T")
_log = get_logger(__name__)
_MARK = "towpath-error:"
_MARKED = re.compile(_MARK + r"(\{.*?\}):end")
_CONCURRENT = (
    "ConcurrentTransaction", "ConcurrentAppend", "ConcurrentDelete", "ConcurrentWrite", "MetadataChanged",
    "ProtocolChanged", "DELTA_CONCURRENT",
)  # fmt: skip
_TARGET = ("ALREADY_EXISTS", "NON_EMPTY_LOCATION", "DELTA_CREATE_TABLE", "Mkdirs failed", "Permission denied")
_RULES = (
    (
        re.compile(r"(?:CHECK constraint (?P<name>\S+)|Invariant) (?P<rule>\(.*?\)) violated"),
        "its CHECK constraint {rule} refuses a row of the source",
        "DROP CONSTRAINT {name}",
    ),
    (
        re.compile(r"NOT NULL constraint violated for column:? (?P<name>[^\s.]+)"),
        "its column {name} is NOT NULL, and the source has a null there",
        "ALTER COLUMN {name} DROP NOT NULL",
    ),
    (
        re.compile(r"DELTA_CANNOT_MODIFY_APPEND_ONLY|append-only|only allow appends"),
        "its property delta.appendOnly forbids updates and deletes",
        "UNSET TBLPROPERTIES ('delta.appendOnly')",
    ),
)
"""Rules that only the Delta table has: the text by which Spark or delta-rs refuses a row, the message, and the clause
of ALTER TABLE that ends the rule."""
_CONSTRAINT = "delta.constraints."
_FINAL = (
    "AnalysisException", "ParseException", "ArithmeticException", "NumberFormatException", "DateTimeException",
    "UnsupportedOperationException", "SparkUpgradeException",
)  # fmt: skip
"""Exceptions of Spark and Java that come again however often a statement is tried."""
_GONE = (
    "Py4JNetworkError", "Answer from Java side is empty", "Connection refused", "ConnectionRefused", "Connection reset",
    "SparkContext was shut down", "StatusCode.UNAVAILABLE", "NO_ACTIVE_SESSION", "Java gateway process exited",
    "An error occurred while trying to connect to the Java server", "Broken pipe",
)  # fmt: skip


class ConcurrentCommitError(MergeFailedError):
    """Another writer has committed to a Delta table that was about to be written, without Spark."""


@contextmanager
def marked_errors() -> Iterator[None]:
    """Marks errors of Towpath inside the block, in a worker. They reach the driver as text, in which
    :func:`find_error` finds them again."""
    try:
        yield
    except CdcError as error:
        raise RuntimeError(f"{_MARK}{json.dumps(to_json(error))}:end") from error


def find_error(text: str) -> CdcError | None:
    """Returns the error of Towpath that a worker raised, from the text of Spark's exception."""
    match = _MARKED.search(text)
    if match is None:
        return None
    try:
        return from_json(json.loads(match[1]))
    except json.JSONDecodeError:
        return None


def to_json(error: CdcError) -> dict[str, str | None]:
    """Returns an error of Towpath as a JSON object, for another process."""
    return {
        "class": type(error).__name__,
        "message": error.message,
        "place": error.place,
        "remedy": error.remedy,
    }


def from_json(content: dict[str, str | None]) -> CdcError:
    """Returns the error that :func:`to_json` wrote."""
    kind = getattr(cdc.base.errors, content["class"] or "", CdcError)
    return cast(
        CdcError, kind(content["message"] or "", place=content["place"] or None, remedy=content["remedy"] or None)
    )


def is_concurrent(error: BaseException) -> bool:
    """Whether another writer committed to the table between this statement's snapshot and its own commit."""
    if isinstance(error, ConcurrentCommitError):
        return True
    text = f"{type(error).__name__}: {_text(error)}"  # delta-spark's exceptions have the class in their type only
    return any(mark in text for mark in _CONCURRENT)


def again_if_concurrent(
    work: Callable[[], _T], table: str, attempts: int, columns: Callable[[], object] = lambda: None
) -> _T:
    """Calls a function, and calls it again if another writer committed to the table at the same moment. The function
    must look at the table anew in each call. ``columns`` returns those of the table: if they have changed meanwhile,
    whatever Spark says about them is no reason to give up."""
    for attempt in range(1, attempts + 1):
        before = columns()
        try:
            return work()
        except Exception as error:
            if attempt == attempts or is_driver_gone(error) or not (is_concurrent(error) or columns() != before):
                raise
            _log.info("another commit came first; trying again", table=table, attempt=attempt)
            time.sleep(0.2 * attempt * (0.5 + random.random()))  # at random, so that two writers do not keep step
    raise AssertionError("the loop returns or raises")


def is_driver_gone(error: BaseException) -> bool:
    """Whether the driver's JVM, or the Connect server, has ended."""
    text = f"{type(error).__name__}: {_text(error)}"
    return any(mark in text for mark in _GONE) or isinstance(error, ConnectionError | EOFError)


def explain(error: BaseException, table: str) -> CdcError:
    """Returns the error of Towpath that says what happened to this table."""
    if isinstance(error, CdcError):
        return error
    text = _text(error)
    known_error = find_error(text)
    if known_error is not None:
        return known_error
    if is_driver_gone(error):
        return MergeFailedError("the Spark driver ended while the table was merged", place=f"table {table}")
    if any(mark in text for mark in _TARGET):
        return TargetError(
            f"the Delta table cannot be made: {first_line(error)}",
            place=f"table {table}",
            remedy="Check what lies at its path and who may write there.",
        )
    rule = broken_rule(error, table)
    if rule is not None:
        return rule
    name = type(error).__name__
    is_final = any(name.endswith(ending) or f"{ending}:" in text for ending in _FINAL)
    may_pass = "_NOT_FOUND" in text or is_concurrent(error)
    kind = PermanentError if is_final and not may_pass else MergeFailedError
    return kind(f"could not be merged: {first_line(error)}", place=f"table {table}")


def broken_rule(error: BaseException, table: str, properties: Iterable[str] = ()) -> TargetError | None:
    """Returns the error for a row that a rule of the Delta table refuses, which another program has set; None if it was
    refused for another reason. ``properties``: the names of the table's, if they are at hand: delta-rs does not name
    the constraint."""
    text = _text(error)
    for pattern, message, clause in _RULES:
        match = pattern.search(text)
        if match is None:
            continue
        words = {key: value for key, value in match.groupdict().items() if value is not None}
        constraints = [key.removeprefix(_CONSTRAINT) for key in properties if key.startswith(_CONSTRAINT)]
        words.setdefault("name", " or ".join(constraints) or "NAME")
        return TargetError(
            f"the Delta table takes no change any more: {message.format_map(words)}",
            place=f"table {table}",
            remedy="Another program has set that. End it with "
            f"ALTER TABLE … {clause.format_map(words)}, then run again: nothing is lost.",
        )
    return None


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    try:
        return f"{error} {java.toString() if java is not None else ''}"
    except Exception as broken:  # noqa: BLE001 - the JVM that holds the exception may have died
        return f"{type(broken).__name__}: {broken}"


def first_line(error: BaseException) -> str:
    """Returns the message of a Java or Spark exception, without its stack trace."""
    text = str(getattr(error, "java_exception", None) or error)
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith(("Traceback", "An error occurred while calling", "at ", "File ")):
            return line[:300]
    return type(error).__name__
