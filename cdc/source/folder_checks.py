"""The preflight of a folder of binlog files: whether they can be captured without loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from cdc.base.errors import CdcError, DamagedError, UnsupportedTypeError
from cdc.base.units import human_bytes
from cdc.binlog.constants import HEADER_SIZE, MAGIC, EventType
from cdc.binlog.sql.schemas import Schemas
from cdc.binlog.table_map import parse_table_map
from cdc.config import DestinationConfig
from cdc.source.findings import Finding, error, from_error, of_apply, ok, warning
from cdc.source.folder import WHOLE_COPY, BinlogFolder, FileReader, FolderFile
from cdc.source.table_checks import check_policies, check_tables

_SAMPLED_BYTES = 16 << 20
"""The bytes of the newest file that are searched for tables."""
_LARGEST_TABLE_MAP = 1 << 20


def examine_folder(config: DestinationConfig, folder: BinlogFolder, schemas: Schemas, begin: int = 0) -> list[Finding]:
    """Returns all findings about a folder, good ones included. ``schemas`` are the definitions of ``source.schemas``,
    ``begin`` is the number of the file that capture needs next: earlier ones do not matter.

    Raises what :class:`BinlogFolder` raises.
    """
    files = [file for number, file in folder.by_number().items() if number >= begin]
    if not files:
        newest = folder.newest().name
        return [
            error(
                "source: files",
                f"the store ends in file number {begin}, and the newest file of the folder is {newest}",
                "Copy the files behind it into the folder.",
            )
        ]
    heads = list(_heads(folder, files))
    if heads:
        return heads
    info = folder.describe()
    span = files[0].name if len(files) == 1 else f"{len(files)} files, {files[0].name} to {files[-1].name}"
    findings = [ok("source", f"{info.product} wrote the files in {folder.address}: {span}")]
    findings += _gaps(folder, begin)
    findings += _end(folder, files[-1])
    findings += _names(config, folder, files[-1], schemas)
    if info.flavor == "mariadb" and not schemas.tables:
        findings.append(
            warning(
                "source: schemas",
                "MariaDB's binlog shows UUID, INET4, INET6 and VECTOR as binary columns, and no definitions are given",
                "If included tables have such columns, set source.schemas before the first capture.",
            )
        )
    about = [*check_tables(config, schemas), *check_policies(config, schemas)] if schemas.tables else []
    findings += [of_apply(finding) for finding in about]
    findings.append(
        ok("source: server", "there is none: `cdc snapshot`, `cdc verify` and standbys of the source are not possible")
    )
    return findings


def _heads(folder: BinlogFolder, files: list[FolderFile]) -> Iterator[Finding]:
    """Yields the files that are no readable binlog of one server."""
    first: tuple[str, int] | None = None
    for file in files:
        try:
            head = folder.head(file)
        except CdcError as trouble:
            if trouble.retryable:
                raise
            if file is not files[-1] or len(files) == 1 or not isinstance(trouble, DamagedError):
                yield from_error("source", trouble)
            continue
        first = first or (file.name, head.server_id)
        if head.server_id != first[1]:
            yield error(
                "source",
                f"{file.path.name} was written by the server_id {head.server_id}, and {first[0]} by {first[1]}",
                "Remove the foreign files. If the server has got another server_id, capture the files from this one on "
                "as a new destination.",
            )


def _gaps(folder: BinlogFolder, begin: int) -> Iterator[Finding]:
    missing = folder.missing(begin)
    if missing:
        names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        yield error(
            "source: files",
            f"{names} {'is' if len(missing) == 1 else 'are'} missing between others; capture stops before a gap",
            "Copy what is missing into the folder. If it is lost, begin a new destination behind it.",
        )


def _end(folder: BinlogFolder, newest: FolderFile) -> Iterator[Finding]:
    end, cut = folder.end(), folder.cut_bytes()
    if cut:
        yield warning(
            "source: end",
            f"{newest.name} ends inside an event: behind position {end.pos} it has {human_bytes(cut)} more",
            f"Capture waits for the rest. If the copy of the file is finished, it is not whole. {WHOLE_COPY}",
        )
    else:
        yield ok("source: end", f"the last whole event ends at {end}")


def _names(config: DestinationConfig, folder: BinlogFolder, newest: FolderFile, schemas: Schemas) -> Iterator[Finding]:
    """Yields whether rows of included tables name their columns, by the tables at the start of the newest file."""
    tables = table_maps(folder, newest)
    ours = {f"{db}.{table}": named for (db, table), named in tables.items() if config.tables.includes(db, table)}
    unnamed = sorted(name for name, named in ours.items() if not named and name not in schemas.tables)
    if unnamed:
        names = ", ".join(unnamed[:5]) + (f" and {len(unnamed) - 5} more" if len(unnamed) > 5 else "")
        yield error(
            "source: binlog_row_metadata",
            f"the rows of {names} in {newest.name} name no columns (binlog_row_metadata was not FULL), and "
            "source.schemas does not describe them",
            "Set source.schemas to a file schemas/SEQ.json of a store that describes them, or exclude them.",
        )
    elif ours:
        yield ok("source: binlog_row_metadata", f"rows in {newest.name} name their columns, or source.schemas does")


def table_maps(folder: BinlogFolder, file: FolderFile) -> dict[tuple[str, str], bool]:
    """Returns the tables (database, table) whose rows lie at the start of a file, and whether they name columns."""
    table_maps: dict[tuple[str, str], bool] = {}
    with closing(FileReader(file, folder.place)) as reader:
        has_checksum = folder.head(file).description.has_checksum
        at = len(MAGIC)
        while at < _SAMPLED_BYTES and reader.seek(at):
            header = reader.read(HEADER_SIZE)
            length = int.from_bytes(header[9:13], "little")
            if len(header) < HEADER_SIZE or length < HEADER_SIZE:
                break
            if header[4] == EventType.TABLE_MAP and length < _LARGEST_TABLE_MAP:
                event = header + reader.read(length - HEADER_SIZE)
                try:
                    table_map = parse_table_map(event, has_checksum)
                except (DamagedError, UnsupportedTypeError):
                    break
                table_maps[table_map.db, table_map.table] = (
                    table_maps.get((table_map.db, table_map.table), True) and table_map.has_metadata
                )
            at += length
    return table_maps
