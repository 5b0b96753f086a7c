"""Spark's and Java's exceptions as errors of Towpath: one sentence, and whether trying again may help."""

from __future__ import annotations

from cdc.errors import CdcError, MergeFailedError, TargetError
from spark_jobs.source.data_source import find_error

_CONCURRENT = (
    "ConcurrentTransaction", "ConcurrentAppend", "ConcurrentDelete", "ConcurrentWrite", "MetadataChanged",
    "ProtocolChanged", "DELTA_CONCURRENT",
)  # fmt: skip
_TARGET = ("ALREADY_EXISTS", "NON_EMPTY_LOCATION", "DELTA_CREATE_TABLE", "Mkdirs failed", "Permission denied")
_GONE = (
    "Py4JNetworkError", "Answer from Java side is empty", "Connection refused", "ConnectionRefused", "Connection reset",
    "SparkContext was shut down", "StatusCode.UNAVAILABLE", "NO_ACTIVE_SESSION", "Java gateway process exited",
    "An error occurred while trying to connect to the Java server", "Broken pipe",
)  # fmt: skip


def is_concurrent(error: BaseException) -> bool:
    """Did another writer commit to the table between this statement's snapshot and its own commit?"""
    text = _text(error)
    return any(mark in text for mark in _CONCURRENT)


def is_driver_gone(error: BaseException) -> bool:
    """Has the driver's JVM, or the Connect server, gone away?"""
    text = f"{type(error).__name__}: {_text(error)}"
    return any(mark in text for mark in _GONE) or isinstance(error, ConnectionError | EOFError)


def explain(error: BaseException, table: str) -> CdcError:
    """The error of Towpath that says what happened to this table."""
    if isinstance(error, CdcError):
        return error
    text = _text(error)
    found = find_error(text)
    if found is not None:
        return found
    if is_driver_gone(error):
        return MergeFailedError("the Spark driver ended while the table was merged", place=f"table {table}")
    if any(mark in text for mark in _TARGET):
        return TargetError(
            f"the Delta table cannot be made: {first_line(error)}",
            place=f"table {table}",
            remedy="Check what lies there and who may write there.",
        )
    return MergeFailedError(f"could not be merged: {first_line(error)}", place=f"table {table}")


def _text(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)
    try:
        return f"{error} {java.toString() if java is not None else ''}"
    except Exception as broken:  # noqa: BLE001 - asking a JVM that has died what its exception says
        return f"{type(broken).__name__}: {broken}"


def first_line(error: BaseException) -> str:
    """What a Java or Spark exception says, without its stack trace."""
    text = str(getattr(error, "java_exception", None) or error)
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith(("Traceback", "An error occurred while calling", "at ", "File ")):
            return line[:300]
    return type(error).__name__
