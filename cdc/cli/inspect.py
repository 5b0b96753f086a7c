"""``cdc inspect``: shows and verifies a store, or a file of a store or a meta."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cdc.base.errors import DamagedError, StorageError, UsageError
from cdc.base.units import iso_time_us
from cdc.batches.manifest import FORMAT as MANIFEST_FORMAT
from cdc.batches.manifest_files import parse_manifest
from cdc.binlog.constants import MAGIC as BINLOG_MAGIC
from cdc.binlog.entry import HEADER_SIZE, Entries, EntryFlag, format_gtid
from cdc.binlog.entry import MAGIC as INDEX_MAGIC
from cdc.binlog.file import BinlogFile
from cdc.cli.common import Decrypt, Json, load_keys, print_json, say, tables
from cdc.disk import files
from cdc.disk.durable import storage_errors
from cdc.disk.encryption.container import MAGIC as ENCRYPTED_MAGIC
from cdc.disk.encryption.read import file_is_encrypted, header_of, open_content
from cdc.meta.file import FILE_NAME, parse
from cdc.meta.file import FORMAT as META_FORMAT
from cdc.store.formats import checkpoint, layout
from cdc.store.formats.index import IndexFile, read_entries
from cdc.store.formats.layout import INDEX_SUFFIX, index_path, segment_epoch
from cdc.store.formats.missing import read_damaged
from cdc.store.formats.prepared import describe
from cdc.store.formats.state import is_locked
from cdc.store.reader.check import check_files
from cdc.store.reader.staged import SEALED_SUFFIX, is_uri, local_copy, staged_entries
from cdc.store.recovery.salvage import examine, salvage
from cdc.watch.status import batch_document

_KINDS = (
    "Name the folder of a store, a segment (.binlog) or another binlog file, an index (.index), a checkpoint, a "
    "meta.json or a manifest."
)


def inspect(
    ctx: typer.Context,
    path: Annotated[Path, typer.Argument(help="A file, or the folder of a store.", metavar="PATH", show_default=False)],
    accept_loss: Annotated[
        str | None,
        typer.Option(
            metavar="SEGMENT",
            help="Accept the loss of the damaged parts of this segment of a store, for good. Its other parts become "
            "readable again.",
            show_default=False,
        ),
    ] = None,
    decrypt: Decrypt = False,
    plain: Annotated[
        Path | None,
        typer.Option(
            "--plain",
            metavar="FILE",
            help="With --decrypt: also write the content of an encrypted segment to this file, which other tools can "
            "read.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show and verify a store, segment, index, checkpoint, meta file or manifest. Exit code 2 means damage."""
    if plain is not None and (not decrypt or path.is_dir()):
        raise UsageError("--plain needs --decrypt and a file", place=str(path), remedy="Name a segment.")
    if decrypt:
        load_keys(ctx)
    is_store = path.is_dir() and (path / "store.json").is_file()
    if path.is_dir() and not is_store:
        raise UsageError("is a folder, but not that of a store", place=str(path), remedy=_KINDS)
    if accept_loss is not None and not is_store:
        raise UsageError("--accept-loss needs the folder of a store", place=str(path), remedy="Name that folder.")
    report: dict[str, Any] = {"path": str(path.absolute())}
    damage: DamagedError | None = None
    try:
        if accept_loss is not None:
            _accept(path, accept_loss, report)
        damage = _store(path, report) if is_store else _file(path, report)
    except DamagedError as error:
        damage = error
    report["sound"] = damage is None
    report["damage"] = None if damage is None else str(damage)
    if as_json:
        print_json(report)
    else:
        _show(report)
    if damage is not None:
        raise damage
    if plain is not None:
        _write_plain(path, plain)


def _write_plain(path: Path, target: Path) -> None:
    """Writes the content of an encrypted file to a new file, which only this user can read."""
    import shutil

    try:
        if not file_is_encrypted(path):
            raise UsageError("is not encrypted", place=str(path), remedy="Leave out --plain.")
        with (
            open_content(path) as source,
            os.fdopen(files.plain.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as copy,
        ):
            shutil.copyfileobj(source, copy, 1 << 20)
    except FileExistsError:
        raise UsageError("exists already", place=str(target), remedy="Name a new file.") from None
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror or error}", place=str(target)) from None
    say(f"written without encryption: {target}")


def _file(path: Path, report: dict[str, Any]) -> DamagedError | None:
    """Fills the report on a file.

    Returns damage after which the file was readable in part, and raises any other DamagedError.
    """
    try:
        with path.open("rb") as file:
            head = file.read(4)
    except FileNotFoundError:
        raise UsageError("this file does not exist", place=str(path), remedy=_KINDS) from None
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(path)) from None
    if path.name == "checkpoint" or head == checkpoint.MAGIC:
        report["kind"] = "checkpoint"
        report |= _checkpoint_report(path, _read(path))
        return None
    if path.suffix == ".index" or head == INDEX_MAGIC:
        return _index(path, report)
    if path.suffix in (".binlog", SEALED_SUFFIX) or head in (BINLOG_MAGIC, ENCRYPTED_MAGIC):
        return _segment(path, report)
    if path.suffix == ".json" or head[:1] == b"{":
        return _document(path, report)
    raise UsageError("is not a file that can be inspected", place=str(path), remedy=_KINDS)


def _read(path: Path) -> bytes:
    with storage_errors(path):
        return path.read_bytes()


def _segment(path: Path, report: dict[str, Any]) -> DamagedError | None:
    report["kind"] = "segment"
    header = header_of(path)
    report["encrypted_with"] = None if header is None else header.key_id
    file = BinlogFile.open(path, epoch=segment_epoch(path))
    entries = file.entries
    end = int(entries["offset"][-1]) + int(entries["length"][-1]) if len(entries) else 0
    report |= {
        "source_file": file.source_file,
        "server_version": file.description.server_version,
        "checksums": file.has_checksum,
        "size_bytes": len(file.buf),
        "after_last_transaction_bytes": len(file.buf) - end if len(entries) else None,
        **_summary(entries),
    }
    report["indexed"] = None
    if file.damage is None and index_path(path).exists():
        return _compare(path, entries, report)
    return file.damage


def _compare(path: Path, entries: Entries, report: dict[str, Any]) -> DamagedError | None:
    """Compares the index beside a segment with it. The index may lag behind, but must not contradict it."""
    import numpy as np

    indexed = read_entries(path)
    report["indexed"] = len(indexed)
    count = min(len(indexed), len(entries))
    differs = np.zeros(count, dtype=bool)
    for key in ("seq", "offset", "length", "checksum"):
        differs |= indexed[key][:count] != entries[key][:count]
    at = int(np.argmax(differs)) if differs.any() else count if len(indexed) > len(entries) else None
    if at is None:
        return None
    return DamagedError(
        f"entry {at} of the index contradicts the segment at byte {int(indexed['offset'][at])}",
        place=str(index_path(path)),
        remedy="Stop capture, remove this index and start capture again: it rebuilds the index from the segment.",
    )


def _index(path: Path, report: dict[str, Any]) -> DamagedError | None:
    report["kind"] = "index"
    if path.suffix != INDEX_SUFFIX:
        raise UsageError("is an index with an unknown name", place=str(path), remedy="Name it SEGMENT.binlog.index.")
    index = IndexFile(path.with_name(path.name.removesuffix(INDEX_SUFFIX)))
    size = path.stat().st_size
    report |= {"size_bytes": size, "entries": len(index.entries)}
    entries = index.verified(0, len(index.entries))
    with_bytes = entries[entries["length"] > 0]
    report |= {"position_entries": len(entries) - len(with_bytes), **_summary(with_bytes)}
    report["unfinished_bytes"] = max(0, size - HEADER_SIZE - entries.nbytes)
    return None


def _summary(entries: Entries) -> dict[str, Any]:
    summary: dict[str, Any] = {"transactions": len(entries)}
    if len(entries):
        first, last = entries[0], entries[-1]
        summary |= {
            "row_events": int(entries["row_events"].sum()),
            "transaction_bytes": int(entries["length"].sum()),
            "ddl_transactions": int(((entries["flags"] & int(EntryFlag.DDL)) != 0).sum()),
            "first_seq": int(first["seq"]),
            "last_seq": int(last["seq"]),
            "first_gtid": format_gtid(first),
            "last_gtid": format_gtid(last),
            "first_time": iso_time_us(int(first["commit_time_us"])),
            "last_time": iso_time_us(int(last["commit_time_us"])),
        }
    return summary


def _document(path: Path, report: dict[str, Any]) -> DamagedError | None:
    with storage_errors(path):
        data = path.read_bytes()
    try:
        document = json.loads(data)
    except ValueError as error:
        if path.name == FILE_NAME:
            return _meta(path, data, report)
        raise DamagedError(f"is not whole JSON: {error}", place=str(path)) from None
    said = document.get("format") if isinstance(document, dict) else None
    if said == META_FORMAT or path.name == FILE_NAME:
        return _meta(path, data, report)
    if said == MANIFEST_FORMAT:
        return _manifest(path, data, report)
    raise UsageError("is neither a meta file nor a manifest", place=str(path), remedy=_KINDS)


def _meta(path: Path, data: bytes, report: dict[str, Any]) -> DamagedError | None:
    report["kind"] = "meta"
    state = parse(data, str(path))
    report |= {
        "destination": state.destination,
        "source": None if state.source is None else state.source.model_dump(mode="json"),
        "subscriptions": [
            {
                "name": name,
                "filter": subscription.filter,
                "acked_seq": subscription.acked_seq,
                "next_batch": subscription.next_batch,
                "outstanding": [batch_document(entry) for entry in subscription.outstanding],
            }
            for name, subscription in sorted(state.subscriptions.items())
        ],
    }
    return None


def _manifest(path: Path, data: bytes, report: dict[str, Any]) -> DamagedError | None:
    """Checks that the ranges of an unacked manifest exist. Retention may have removed those of an acked one."""
    report["kind"] = "manifest"
    manifest = parse_manifest(data, str(path))
    report |= manifest.model_dump(mode="json", exclude={"format"})
    if manifest.acked is not None:
        return None
    transactions = sum(len(staged_entries(r.path, r.offset, r.length)) for r in manifest.ranges)
    for each in manifest.ranges:
        if is_uri(each.path):
            with local_copy(each.path):  # verifies its checksum
                continue
        segment = Path(each.path)
        if not segment.is_file() or segment.stat().st_size < each.offset + each.length:
            return DamagedError(f"the bytes {each.offset}+{each.length} of this segment are missing", place=each.path)
    if transactions != manifest.transactions:
        return DamagedError(
            f"its ranges hold {transactions} transactions, and it names {manifest.transactions}", place=str(path)
        )
    return None


def _checkpoint_report(path: Path, data: bytes) -> dict[str, Any]:
    """Returns the content of a checkpoint file. Raises DamagedError, VersionError."""
    note = checkpoint.parse(data, str(path))
    return {**asdict(note), "segment": note.segment or None, "time": iso_time_us(note.time_us)}


def _store(store: Path, report: dict[str, Any]) -> DamagedError | None:
    """Verifies every segment of a store, transaction by transaction, and its index, and returns the first damage.

    A writer may work on the store meanwhile.
    """
    layout.check(store)
    damage: DamagedError | None = None
    report["kind"] = "store"
    report["writer"] = is_locked(store)
    report["clean_stop"] = not checkpoint.was_aborted(store)
    try:
        note = checkpoint.read_checkpoint(store)
        report["checkpoint"] = None if note is None else _checkpoint_report(store / checkpoint.FILE_NAME, note.render())
    except DamagedError as error:
        report["checkpoint"], damage = None, error
    report["prepared"] = describe(store)
    report["given_up"] = [asdict(part) for part in read_damaged(store)]
    report["segments"] = []
    segments = layout.list_segments(store)
    for segment in segments:
        scan = examine(segment, is_last=segment == segments[-1])
        losses = [
            {
                "offset": loss.offset,
                "length": loss.end - loss.offset,
                "transactions": len(loss.entries) or None,
                "first_seq": int(loss.entries["seq"][0]) if len(loss.entries) else None,
                "last_seq": int(loss.entries["seq"][-1]) if len(loss.entries) else None,
                "why": loss.why,
            }
            for loss in scan.losses
        ]
        count = int((scan.good["length"] > 0).sum())
        report["segments"].append(
            {"name": segment.name, "size_bytes": scan.size, "transactions": count, "damaged": losses}
        )
        if losses and damage is None:
            first = scan.losses[0]
            damage = DamagedError(
                f"{len(losses)} part(s) of this segment cannot be read, the first at byte {first.offset}: {first.why}",
                place=str(segment),
                remedy="Restore the file from a copy, or see docs/how-to/restoring.md for what else can be done.",
            )
    report["faults"] = check_files(store).faults
    if damage is None and report["faults"]:
        damage = DamagedError(
            report["faults"][0], place=str(store), remedy="See docs/how-to/restoring.md for what can be done."
        )
    return damage


def _accept(store: Path, name: str, report: dict[str, Any]) -> None:
    """Accepts the loss of the damaged parts of a segment. Raises UsageError, LeaseHeldError, StorageError."""
    report["kind"] = "store"
    report["accepted"] = [asdict(loss) for loss in salvage(store, name)]


def _show(report: dict[str, Any]) -> None:
    from rich.table import Column, Table

    grid = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    for key, value in report.items():
        if key in ("damage", "sound"):
            continue
        text = json.dumps(value, indent=1, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        grid.add_row(key, "–" if value is None else text)
    grid.add_row("sound", "yes" if report["sound"] else "no")
    tables().print(grid, markup=False)
