"""Registers Delta tables in a catalog of Spark, where readers find them by name.

Towpath itself reads and writes tables by their paths. An entry of the catalog names such a path, and is made after the
table's commit. Whatever fails here leaves the table as it is: the next run finds it at its position, and registers it.

An entry that is missing is made again; one that names a former folder of the same table is corrected. An entry of
anything else is refused. Entries are removed with their destination alone (:func:`drop`), since a Delta table outlives
its source table, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

from cdc.base.errors import CatalogUnavailableError, CdcError, ConfigError, TargetError
from cdc.base.log import get_logger
from cdc.base.targets import DESTINATION_PROPERTY, local_path
from cdc.config.catalog import SESSION_CATALOG
from cdc.lake.delta.log import read_state
from cdc.lake.delta.sql import literal, quote
from cdc.lake.delta.transaction import some
from cdc.lake.runtime.failures import first_line
from cdc.lake.runtime.private_pyspark import is_connect, java_class, java_session, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.config import DestinationConfig
    from cdc.lake.delta.tables import Target

KNOWN_FOR_S = 300.0
"""The time for which this process trusts an entry that it has found right."""
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_FACT = re.compile(r"^(Type|Provider|Location): (.*)$", re.MULTILINE)
_MISSING = ("SCHEMA_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND", "NoSuchTable", "NoSuchNamespace", "NoSuchDatabase")
_EXISTS = ("ALREADY_EXISTS", "AlreadyExists")
_S3 = re.compile(r"^s3[an]?://")
_log = get_logger(__name__)
_known: dict[tuple[str, str], tuple[str, float]] = {}
"""The entries that were found right, by (Spark application, name): the path, and the time of ``time.monotonic``."""


@dataclass(frozen=True)
class CatalogEntry:
    """The entry of a name in a catalog."""

    kind: str
    """``EXTERNAL``, ``MANAGED`` or ``VIEW``."""
    provider: str
    location: str


@dataclass(frozen=True)
class Name:
    """The name of a table in a catalog."""

    catalog: str
    database: str
    table: str

    @property
    def sql(self) -> str:
        return f"{self.sql_database}.{quote(self.table)}"

    @property
    def sql_database(self) -> str:
        return f"{quote(self.catalog)}.{quote(self.database)}"

    def __str__(self) -> str:
        return f"{self.catalog}.{self.database}.{self.table}"


def name_of(config: DestinationConfig, table: str) -> Name | None:
    """Returns the name of the source table ``db.table`` in the catalog; None if none is configured."""
    catalog = config.apply.catalog
    return None if catalog.name is None else Name(catalog.name, *catalog.name_of(config.tables.lake_name(table)))


def require_catalog(spark: SparkSession, config: DestinationConfig) -> None:
    """Proves that the configured catalog, if there is one, answers and outlives the session. Call it before a merge:
    with a Hive metastore, even statements on paths need it. Raises ConfigError, CatalogUnavailableError."""
    name = config.apply.catalog.name
    if name is None:
        return
    own = spark.conf.get(f"spark.sql.catalog.{SESSION_CATALOG}", None)
    implementation = spark.conf.get("spark.sql.catalogImplementation", None)
    if name == SESSION_CATALOG and own == _DELTA_CATALOG and implementation != "hive":
        raise ConfigError(
            f"this Spark keeps {SESSION_CATALOG} in memory, so the names of tables would be forgotten when it ends",
            place="apply.catalog.name",
            remedy="Write spark.sql.catalogImplementation: hive and the address of the metastore in spark.conf (of "
            "spark.remote: where that server is started).",
        )
    _run(spark, f"SHOW NAMESPACES IN {quote(name)} LIKE 'default'", f"apply.catalog {name}")


def find_entry(spark: SparkSession, name: Name) -> CatalogEntry | None:
    """Returns what the catalog says about a name; None if it does not have it. Raises CatalogUnavailableError."""
    try:
        if name.catalog == SESSION_CATALOG:  # does not read the table, so it also finds one without files
            rows = spark.sql(f"SHOW TABLE EXTENDED IN {name.sql_database} LIKE {literal(name.table)}").collect()
            text = next((str(row["information"]) for row in rows if row["tableName"] == name.table), None)
        else:
            rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name.sql}").collect()
            text = "\n".join(f"{row['col_name']}: {row['data_type']}" for row in rows)
    except Exception as error:
        if any(mark in str(error) for mark in _MISSING):
            return None
        raise _away(error, str(name)) from error
    if text is None:
        return None
    facts = dict(_FACT.findall(text))  # the last of each: a comment before it may look like one
    return CatalogEntry(facts.get("Type", ""), facts.get("Provider", ""), facts.get("Location", ""))


def unknown(spark: SparkSession, config: DestinationConfig, targets: Iterable[Target]) -> Iterator[Target]:
    """Yields the tables whose entries this process has not lately found right; none if no catalog is configured. The
    session is asked for its application once, whatever the number of tables."""
    if config.apply.catalog.name is None:
        return
    application = _application(spark)
    for target in targets:
        path, when = _known.get((application, str(name_of(config, target.table))), ("", 0.0))
        if path != target.path or time.monotonic() - when >= KNOWN_FOR_S:
            yield target


def register(spark: SparkSession, config: DestinationConfig, target: Target) -> None:
    """Makes the catalog, if one is configured, name the path of a table that is there.

    Raises TargetError if the name belongs to something else, ConfigError if the catalog cannot own the table,
    CatalogUnavailableError if it cannot be reached or refuses.
    """
    name = name_of(config, target.table)
    if name is None or not list(unknown(spark, config, [target])):
        return
    managed = config.apply.catalog.managed
    if managed:
        _require_place(spark, name, target)
    entry = find_entry(spark, name)
    if entry is not None and not is_same_place(entry.location, target.path):
        _require_former(entry, name, target)
        _log.info("the table has moved, so its name is given anew", table=target.table, name=str(name))
        _run(spark, f"DROP TABLE {name.sql}", str(name))
        entry = None
    if entry is None:
        entry = _create(spark, name, target)
    if entry.provider.lower() != "delta" or entry.kind not in ("EXTERNAL", "MANAGED"):
        _refuse(name, target, f"a {entry.kind or entry.provider} of the provider {entry.provider or 'unknown'}")
    if name.catalog == SESSION_CATALOG and (entry.kind == "MANAGED") != managed:
        _set_managed(spark, name, target, managed)
    _known[(_application(spark), str(name))] = (target.path, time.monotonic())


def difference(spark: SparkSession, config: DestinationConfig, target: Target) -> str | None:
    """Returns in words how the catalog's entry of an existing table differs from the table; None if it does not.
    Changes nothing. Raises CatalogUnavailableError."""
    name = name_of(config, target.table)
    if name is None:
        return None
    entry = find_entry(spark, name)
    if entry is None:
        return f"{name} is missing; the next run makes it"
    if not is_same_place(entry.location, target.path):
        return f"{name} is at {entry.location or 'no place'} ({entry.kind or 'of an unknown type'}), not {target.path}"
    return None


def drop(spark: SparkSession, name: Name) -> None:
    """Removes a name from the catalog, which may lack it; of a table that the catalog owns, the files as well. Raises
    CatalogUnavailableError."""
    _run(spark, f"DROP TABLE IF EXISTS {name.sql}", str(name))
    _known.pop((_application(spark), str(name)), None)


def is_same_place(location: str, path: str) -> bool:
    """Whether the location that a catalog shows is the path of a table."""
    path_folder, location_folder = local_path(path), local_path(location) if location else None
    if path_folder is not None and location_folder is not None:
        return Path(path_folder).resolve() == Path(location_folder).resolve()
    return _S3.sub("s3://", location).rstrip("/") == _S3.sub("s3://", path).rstrip("/")


# --- statements ------------------------------------------------------------------------------------------------------


def _create(spark: SparkSession, name: Name, target: Target) -> CatalogEntry:
    """Makes an external entry, and returns it as the catalog has it then: another driver may have been first."""
    if not _has_database(spark, name):
        _run(spark, f"CREATE DATABASE IF NOT EXISTS {name.sql_database}", str(name))
    _run(spark, f"CREATE TABLE IF NOT EXISTS {name.sql} USING delta LOCATION {literal(target.path)}", str(name))
    entry = find_entry(spark, name)
    if entry is None:
        raise CatalogUnavailableError("the catalog lacks a table that it has just been given", place=str(name))
    if not is_same_place(entry.location, target.path):
        _refuse(name, target, f"a table at {entry.location}")
    _log.info("the table is registered", table=target.table, name=str(name))
    return entry


def _has_database(spark: SparkSession, name: Name) -> bool:
    rows = _run(spark, f"SHOW NAMESPACES IN {quote(name.catalog)} LIKE {literal(name.database)}", str(name))
    return any(str(row[0]).strip("`") == name.database for row in rows)


def _run(spark: SparkSession, statement: str, place: str) -> list[Any]:
    try:
        rows: list[Any] = spark.sql(statement).collect()
    except Exception as error:
        if any(mark in str(error) for mark in _EXISTS):  # another driver was first; what it made is looked at
            return []
        raise _away(error, place) from error
    return rows


def _away(error: Exception, place: str) -> CdcError:
    return CatalogUnavailableError(
        f"the catalog cannot be reached, or refuses: {first_line(error)}",
        place=place,
        remedy="Check the address of the catalog in spark.conf, and the rights there. The Delta tables are whole; the "
        "next run registers them.",
    )


def _application(spark: SparkSession) -> str:
    return str(spark.conf.get("spark.app.id", ""))


# --- tables that the catalog owns ------------------------------------------------------------------------------------


def _require_place(spark: SparkSession, name: Name, target: Target) -> None:
    """Makes the database with the folder of the table, if it is missing. Raises ConfigError if the catalog would put a
    table of its own elsewhere than Towpath does."""
    folder, _, last = target.path.rpartition("/")
    if not _has_database(spark, name):
        statement = f"CREATE DATABASE IF NOT EXISTS {name.sql_database} LOCATION {literal(folder)}"
        _run(spark, statement, str(name))
    rows = _run(spark, f"DESCRIBE DATABASE {name.sql_database}", str(name))
    location = unquote(next((str(row[1]) for row in rows if str(row[0]) == "Location"), ""))  # it is shown as a URI
    if is_same_place(location, folder) and last == name.table:
        return
    raise ConfigError(
        f"the catalog would put the table at {PurePosixPath(location) / name.table}, and apply.target says "
        f"{target.path}",
        place=f"apply.catalog.managed, table {target.table}",
        remedy="Set managed: false; or let the database of the catalog have the folder of the tables, and the table a "
        "name of lower-case letters, digits and underscores.",
    )


def _set_managed(spark: SparkSession, name: Name, target: Target, managed: bool) -> None:
    """Changes the type of an entry, which no statement of SQL does: Delta makes managed tables in empty folders only.
    The table keeps its files, whatever dies in between."""
    if is_connect(spark):
        raise ConfigError(
            f"the catalog owns the files of {name}, and apply.catalog.managed is {str(managed).lower()}",
            place=f"table {target.table}",
            remedy="Spark Connect cannot change that: run `cdc apply` once without spark.remote.",
        )
    jvm = jvm_of(spark)
    try:
        catalog = java_session(spark).sessionState().catalog()
        identifier = java_class(jvm, "org.apache.spark.sql.catalyst.TableIdentifier")(
            name.table, some(jvm, name.database)
        )
        table_metadata = catalog.getTableMetadata(identifier)
        default = "copy$default$"
        count = sum(1 for attribute in dir(table_metadata) if attribute.startswith(default))
        fields = [getattr(table_metadata, f"{default}{number}")() for number in range(1, count + 1)]
        types = java_class(jvm, "org.apache.spark.sql.catalyst.catalog.CatalogTableType")
        fields[1] = types.MANAGED() if managed else types.EXTERNAL()  # (identifier, tableType, …)
        if managed:
            # The metastore keeps another folder for an external table, and DROP TABLE would delete that one. For a new
            # managed table it takes the database's folder, see _require_place.
            spark.sql(f"DROP TABLE {name.sql}")
            # Neither if it exists, nor with a look at the folder.
            catalog.createTable(table_metadata.copy(*fields), False, False)
        else:
            catalog.alterTable(table_metadata.copy(*fields))
    except Exception as error:
        raise _away(error, str(name)) from error
    entry = find_entry(spark, name)
    if entry is None or (entry.kind == "MANAGED") != managed or not is_same_place(entry.location, target.path):
        raise CatalogUnavailableError(
            f"the catalog does not take the table as {'managed' if managed else 'external'}",
            place=str(name),
            remedy="Set apply.catalog.managed back.",
        )


# --- names that are taken --------------------------------------------------------------------------------------------


def _require_former(entry: CatalogEntry, name: Name, target: Target) -> None:
    """Raises TargetError unless an entry names a folder in which this source table was before."""
    former = None
    if entry.kind == "EXTERNAL" and entry.provider.lower() == "delta" and entry.location:
        try:
            former = read_state(entry.location, target.destination, target.table)
        except CdcError as error:
            _log.info("the table that has the name cannot be read", name=str(name), reason=str(error))
    owner = None if former is None else former.properties.get(DESTINATION_PROPERTY)
    if former is None or owner != target.destination or not (former.applied_seq or former.ledger):
        _refuse(name, target, f"a table at {entry.location}" if entry.location else f"a {entry.kind}")


def _refuse(name: Name, target: Target, what: str) -> NoReturn:
    raise TargetError(
        f"the catalog has something else under the name {name}: {what}",
        place=f"table {target.table} at {target.path}",
        remedy=f"Give the table another name with apply.catalog.names, or, if nobody needs that one, remove it in the "
        f"catalog: DROP TABLE {name} (a managed table loses its files).",
    )
