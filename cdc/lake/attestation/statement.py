"""The statement of a verification: what was proved, and the files of the Delta tables of which it was proved.

It is a statement of in-toto (https://github.com/in-toto/attestation, ``spec/v1/statement.md``): the subjects are the
Parquet files, each with its SHA-256, and the predicate is the report of the verification.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cdc.base.errors import TargetError, UsageError, VersionError
from cdc.base.units import iso_time
from cdc.base.version import package_version
from cdc.client import open_meta, open_store
from cdc.lake.attestation.files import DataFile, digests, read_version

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.lake.verify.report import VerificationReport

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
FORMAT_VERSION = 1
_PREDICATE = "urn:towpath:verification:"
PREDICATE_TYPE = f"{_PREDICATE}{FORMAT_VERSION}"


def make_statement(
    config: DestinationConfig, report: VerificationReport, progress: Callable[[str], object] = lambda _: None
) -> dict[str, Any]:
    """Returns the statement of a verification that has just ended, as JSON. The Parquet files of the verified versions
    are read whole.

    Raises TargetError if a version is gone already, RetryableError if a table cannot be read, and what reading the meta
    and the store raises.
    """
    document = report.document()
    source = open_meta(config).source()
    stored = open_store(config).newest_schemas()
    schemas = {} if stored is None else stored[1].tables
    subjects: list[dict[str, Any]] = []
    tables = []
    for entry in document.pop("tables"):
        # The values of rows are not for everybody who may read the statement.
        entry["checksums"]["differences"] = len(entry["checksums"]["differences"])
        entry["delta"] = None
        name = entry["table"]
        if entry["delta_version"] is not None:
            progress(f"reading the files of {name}")
            keys = config.table_apply(name).keys or (schemas[name].primary_key if name in schemas else ())
            path = config.table_path(name)
            state = read_version(path, name, entry["delta_version"], keys)
            entry["delta"] = {"location": path, "id": state.delta_id, "schema_sha256": state.schema_sha256}
            for file_path, digest in digests(path, sorted(state.files)):
                if digest is None:
                    raise TargetError(
                        f"the file {file_path} of version {state.version} is gone",
                        place=f"table {name} at {path}",
                        remedy="VACUUM has removed it meanwhile: verify again.",
                    )
                subjects.append(_subject(name, state.files[file_path], digest))
        tables.append(entry)
    document.pop("second_opinion")
    return {
        "_type": STATEMENT_TYPE,
        "subject": subjects,
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            **document,
            "created": iso_time(datetime.now(UTC)),
            "towpath": package_version(),
            "source": None if source is None else source.model_dump(include={"server_uuid", "flavor", "epoch"}),
            "tables": tables,
        },
    }


def facts_of(file: DataFile) -> dict[str, Any]:
    """Returns what a statement says of a file besides its digest."""
    facts = asdict(file)
    facts["keys"] = {name: list(limits) for name, limits in file.keys.items()}
    return facts


def _subject(table: str, file: DataFile, digest: str) -> dict[str, Any]:
    return {
        "name": f"{table}/{file.path}",
        "digest": {"sha256": digest},
        "annotations": {"table": table, **facts_of(file)},
    }


def require_readable(statement: Mapping[str, Any], place: str) -> None:
    """Raises VersionError for a statement in a newer format, UsageError for one of another kind."""
    kind = str(statement.get("predicateType"))
    if statement.get("_type") == STATEMENT_TYPE and kind == PREDICATE_TYPE:
        return
    if kind.startswith(_PREDICATE):
        raise VersionError(
            f"has the format {kind}, and this version of Towpath reads {PREDICATE_TYPE}",
            place=place,
            remedy="Check it with a newer Towpath.",
        )
    raise UsageError(
        f"is not a statement on Delta tables but {kind}", place=place, remedy="cdc verify --attest writes one."
    )
