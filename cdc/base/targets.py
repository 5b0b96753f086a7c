"""Names of Delta tables: the path of a table's files, the application id of its applied position, and the properties
that Towpath sets. :mod:`cdc.lake.delta.log` reads the tables."""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cdc.base.errors import UsageError

DESTINATION_PROPERTY = "towpath.destination"
"""Delta table property: the destination that owns the table."""
SINCE_PROPERTY = "towpath.since_seq"
"""Delta table property: the seq at which the table was created empty; up to there it was complete."""
GENERATION_PROPERTY = "towpath.generation"
"""Delta table property: rises with every rebuild of the table, since Delta's transaction versions never shrink."""
BEGINS_PROPERTY = "towpath.begins_seq"
"""Delta table property: the table's changes after this seq make all of it; empty if it has rows of another table.
Without it the first generation is made by all of its changes, and a later one began with a snapshot."""


CLUSTER_PROPERTY = "towpath.cluster_by"
"""Delta table property: the columns that the table is clustered by, as a JSON list. Delta itself keeps them where the
readers of its log that Towpath uses do not show them."""


SHARED_PROPERTY = "towpath.shared"
"""Delta table property: ``true`` if several destinations write the table, each its own rows; ``tables`` if several
source tables of one destination do (``tables.route``)."""
ROUTED = "tables"
SOURCE_COLUMN = "_source"
"""The column of a shared table that names the member whose row it is: the destination, or the source table."""
_OURS, _MEMBER = "towpath.", "towpath.member."
_OF_MEMBERS = frozenset(
    {"generation", "since_seq", "begins_seq", "server_uuid", "epoch", "columns", "rebuild", "kept_partitions"}
)
_RECORDS = "source_schema"
KEPT_PROPERTY = "towpath.kept_partitions"
"""Delta table property: the last statements that dropped partitions whose rows were kept (``on_drop_partition: keep``),
as a JSON list of their ``seq`` and ``statement``."""
REBUILD_PROPERTY = "towpath.rebuild"
"""Delta table property of a shared table: the id of the snapshot or replay that began the generation."""


def is_shared(properties: Mapping[str, str]) -> bool:
    """Whether a table with these properties has members, each with its own rows: several destinations, or several
    source tables of one."""
    return properties.get(SHARED_PROPERTY) in ("true", ROUTED)


def is_routed(properties: Mapping[str, str]) -> bool:
    """Whether the members of a table with these properties are source tables of one destination."""
    return properties.get(SHARED_PROPERTY) == ROUTED


def properties_for(properties: Mapping[str, str], destination: str, table: str) -> dict[str, str]:
    """Returns a Delta table's properties as one source table ``db.table`` of one destination sees them. In a shared
    table each member has records of its own (``towpath.member.MEMBER.NAME``, with MEMBER as :func:`encode_name` writes
    it); they get the names that they have in a table with one owner. Who is no member of the table has none of them,
    and is not its owner."""
    if not is_shared(properties):
        return dict(properties)
    own = _member(table if is_routed(properties) else destination)
    visible = {key: value for key, value in properties.items() if not key.startswith(_MEMBER)}
    owner = visible.pop(DESTINATION_PROPERTY, destination)
    if owner != destination:
        return visible
    mine = {_OURS + key.removeprefix(own): value for key, value in properties.items() if key.startswith(own)}
    if GENERATION_PROPERTY in mine:
        visible |= {**mine, DESTINATION_PROPERTY: destination}
    return visible


def stored_name(name: str, member: str, *, shared: bool) -> str:
    """Returns the name under which a table stores a property of :func:`properties_for`."""
    bare = name.removeprefix(_OURS)
    is_members = bare in _OF_MEMBERS or bare == _RECORDS or bare.startswith(f"{_RECORDS}.")
    return f"{_member(member)}{bare}" if shared and name.startswith(_OURS) and is_members else name


def records_of(properties: Mapping[str, str], member: str) -> list[str]:
    """Returns the names of a shared table's properties that are one member's records, also of a former member."""
    return sorted(name for name in properties if name.startswith(_member(member)))


def members_of(properties: Mapping[str, str]) -> list[str]:
    """Returns the destinations or source tables that have joined a shared table, sorted; none for other tables."""
    ending = f".{GENERATION_PROPERTY.removeprefix(_OURS)}"
    names = (key for key in properties if key.startswith(_MEMBER) and key.endswith(ending))
    return sorted(unquote(name.removeprefix(_MEMBER).removesuffix(ending)) for name in names)


def _member(member: str) -> str:
    """Returns the beginning of the names of a member's records. A dot in the member's name is encoded, so that no
    member's records begin like those of another one."""
    return f"{_MEMBER}{encode_name(member)}."


def begins_of(properties: Mapping[str, str]) -> int | None:
    """Returns the seq after which a table's changes make all of it; None if they do not."""
    begins = properties.get(BEGINS_PROPERTY)
    if begins is None and properties.get(GENERATION_PROPERTY, "0") == "0":
        begins = properties.get(SINCE_PROPERTY, "0")
    return int(begins) if begins else None


MODE_COLUMNS: dict[str, tuple[str, ...]] = {
    "upsert": (),
    "soft_delete": ("_deleted", "_commit_time", "_seq"),
    "append": ("_op", "_seq", "_row", "_commit_time", "_gtid", "_before"),
    "scd2": ("_valid_from", "_valid_to", "_current", "_seq"),
}
"""The columns that each mode adds behind those of the source, in their order."""

LOG_FOLDER = "_delta_log"
"""A folder of this name makes its parent folder a Delta table."""
NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")
"""Characters in a column's name that Parquet refuses, so that Delta needs column mapping."""
_PLAIN = frozenset((string.ascii_letters + string.digits + "_$-").encode())


def encode_name(name: str) -> str:
    """Returns the folder name of a database or table: percent-encoded (UTF-8) outside ``[A-Za-z0-9_$-]``;
    ``_delta_log`` becomes ``%5Fdelta_log``."""
    if name.lower() == LOG_FOLDER:
        return "%5F" + name[1:]
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode("utf-8"))


def table_path(target: str, db: str, table: str) -> str:
    """Returns ``{target}/{db}/{table}``; ``target`` is a folder or a URI, with or without a trailing slash."""
    if not target or not db or not table:
        raise UsageError(f"a table's path needs target, database and table, not {target!r}, {db!r}, {table!r}")
    return f"{target.rstrip('/')}/{encode_name(db)}/{encode_name(table)}"


def application_id(dest: str, table: str, generation: int = 0) -> str:
    """Returns the application id of Delta's ``txn`` action for ``db.table``; the action's version is the applied seq.

    Spark replaces ``${name}`` in the setting that carries the id, so ``${`` in a name is written ``$%7B``.
    """
    return f"towpath:{dest}:{table}:{generation}".replace("${", "$%7B")


def split_table(name: str) -> tuple[str, str]:
    """Splits ``db.table`` at its first dot. Raises UsageError."""
    db, _, table = name.partition(".")
    if not (db and table):
        raise UsageError(f"{name!r} is not the name of a table", remedy="Write it as db.table.")
    return db, table


def local_path(path: str) -> Path | None:
    """Returns the folder if a path or URI of Spark names one on this machine, else None. A percent sign is taken as it
    is, as Hadoop does."""
    if path.startswith("file:"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if "://" in path else Path(path)


def has_percent_sign(path: str) -> bool:
    """Whether the absolute path holds a percent sign, which Spark takes as it is and ``deltalake`` as an escape."""
    local = local_path(path)
    return "%" in (path if local is None else str(local.absolute()))


PLAIN_READER = "any reader of Delta"
MAPPING_READER = "Spark, or a reader with column mapping such as deltalake's QueryBuilder (to_pandas shows only nulls)"
VECTORS_READER = "Spark, or a reader with deletion vectors such as deltalake's QueryBuilder"
_SPARK_FEATURES = {
    "typeWidening": "type widening",
    "typeWidening-preview": "type widening",
    "variantType": "variants",
    "variantType-preview": "variants",
}


def reader_of(path: str, properties: Mapping[str, str], features: Collection[str] = ()) -> str:
    """Returns which readers a Delta table needs, in words. ``features``: the reader features of its protocol."""
    for feature, name in _SPARK_FEATURES.items():
        if feature in features:
            return f"Spark, or another reader with {name}"
    if has_percent_sign(path):
        return "Spark (deltalake takes the percent sign in the path for an escape)"
    if properties.get("delta.columnMapping.mode", "none") != "none":
        return MAPPING_READER
    if "deletionVectors" in features:
        return VECTORS_READER
    return PLAIN_READER


def expected_reader(path: str, columns: Collection[str], *, deletion_vectors: bool = False) -> str:
    """Returns the same for a table that is not created yet, with columns of these names. ``deletion_vectors``: it may
    get deletion vectors."""
    mapped = any(NEEDS_MAPPING & set(name) for name in columns)
    properties = {"delta.columnMapping.mode": "name"} if mapped else {}
    return reader_of(path, properties, ["deletionVectors"] if deletion_vectors else [])


def dataset_of(path: str) -> tuple[str, str]:
    """Returns the namespace and the name of the dataset at a path or URI: ``("file", "/lake/shop/orders")``,
    ``("s3://bucket", "lake/shop/orders")``. Credentials are left out."""
    local = local_path(path)
    if local is not None:
        return "file", str(local.absolute())
    parts = urlsplit(path)
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    # In abfss://container@account the part before the @ is no user.
    host = parts.netloc if scheme in ("abfs", "abfss", "wasb", "wasbs") else parts.netloc.rpartition("@")[2]
    return f"{scheme}://{host}", parts.path.lstrip("/")
