"""XA transactions that are prepared and neither committed nor rolled back: the folder ``prepared`` of a store.

The rows of an XA transaction are in the binlog at its XA PREPARE, and only a later XA COMMIT or XA ROLLBACK tells
whether they count. Until then capture keeps each transaction with captured rows in a file of its own, encrypted if
segments are, and ``prepared.json`` lists them (``docs/formats/store.md``). ``others.json`` lists those without captured
rows, so that their XA COMMIT is known to be of no interest.

Guarantees after a kill or a power cut; P is the last position in the store, at which capture goes on:

1. Before a byte of a later transaction, or a position after the XA PREPARE, is handed to the log, the transaction's
   file and the list are durable (:meth:`PreparedTransactions.sync`). So each transaction with captured rows that was
   prepared at or before P and ended after P is in the list.
2. In the list are also transactions that were prepared after P, which are read again: they are dropped at the start.
3. A transaction that ends is listed with the seq of its end before its XA COMMIT is in the log. It is removed only
   after that seq is durable in the log. So at the start one that ended at or before P is dropped, and one that ended
   after P is pending again.

``others.json`` is not synced. A power cut may lose it, and capture then looks for such a transaction in the source's
binlog (:mod:`cdc.capture.prepared_search`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from cdc.base.errors import DamagedError
from cdc.base.log import get_logger
from cdc.base.units import iso_time_us
from cdc.disk import files
from cdc.disk.durable import make_folder, remove_file, replace_file, storage_errors
from cdc.disk.encryption import append
from cdc.disk.encryption.append import AppendFile
from cdc.disk.encryption.read import content_size
from cdc.store.formats.layout import read_document

FOLDER = "prepared"
LIST_NAME = "prepared.json"
OTHERS_NAME = "others.json"
VERSION = 1
_MAX_OPEN = 64

log = get_logger(__name__)

_REMEDY = (
    "Restore it from a copy; or remove the folder: capture then looks for prepared XA transactions in the source's "
    "binlog."
)


@dataclass(frozen=True)
class PreparedTransaction:
    """An XA transaction that was prepared."""

    xid: str
    """The text that servers log, in lower case: ``x'61',x'',1`` (gtrid, bqual, format)."""
    seq: int
    """The seq of its XA PREPARE."""
    time_us: int
    """When it was prepared, µs since 1970, UTC, by the source's clock."""
    gtid: str | None = None
    """The GTID of its XA PREPARE, as the server prints it."""
    tables: tuple[str, ...] = ()
    """The captured tables that it changed."""
    captured: str = ""
    """A hash of the configuration's choice of tables. With another choice, rows may be missing."""
    offset: int = 0
    """The offset of the transaction in its file."""
    size: int = 0
    """Bytes of its file; 0: it has no captured rows, and no file."""
    ended_seq: int = 0
    """Seq of its XA COMMIT or XA ROLLBACK; 0 while it is pending."""

    @property
    def file_name(self) -> str:
        return f"{self.seq:019d}.binlog"


def read_prepared(store: Path) -> list[PreparedTransaction]:
    """Returns the listed transactions with captured rows, oldest first; none without the file. Raises DamagedError,
    VersionError, StorageError."""
    return _read(store / FOLDER / LIST_NAME)


def _read(path: Path) -> list[PreparedTransaction]:
    document = read_document(path, _REMEDY)
    if document is None:
        return []
    try:
        return sorted(
            (_parse(transaction) for transaction in document["transactions"]), key=lambda transaction: transaction.seq
        )
    except (KeyError, TypeError, ValueError):
        raise DamagedError("is not a list of prepared XA transactions", place=str(path), remedy=_REMEDY) from None


def pending(store: Path) -> list[PreparedTransaction]:
    """Returns the transactions with captured rows that are neither committed nor rolled back. Raises what
    :func:`read_prepared` raises."""
    return [transaction for transaction in read_prepared(store) if not transaction.ended_seq]


def describe(store: Path) -> dict[str, Any]:
    """Returns the pending transactions as a document: ``count``, ``bytes``, and ``transactions``, oldest first."""
    transactions = pending(store)
    return {
        "count": len(transactions),
        "bytes": sum(transaction.size for transaction in transactions),
        "transactions": [
            {
                "xid": transaction.xid,
                "seq": transaction.seq,
                "gtid": transaction.gtid,
                "time": iso_time_us(transaction.time_us),
                "tables": list(transaction.tables),
                "bytes": transaction.size,
            }
            for transaction in transactions
        ],
    }


def _parse(transaction: Any) -> PreparedTransaction:
    return PreparedTransaction(
        xid=str(transaction["xid"]),
        seq=int(transaction["seq"]),
        time_us=int(transaction["time_us"]),
        gtid=transaction["gtid"],
        tables=tuple(transaction["tables"]),
        captured=str(transaction["captured"]),
        offset=int(transaction["offset"]),
        size=int(transaction["size"]),
        ended_seq=int(transaction["ended_seq"]),
    )


class PreparedTransactions:
    """The prepared transactions of a store that is open for writing; on the thread that appends to it."""

    def __init__(self, store: Path, up_to: int) -> None:
        """Reads the list. ``up_to`` is the seq after which capture goes on. Raises DamagedError, VersionError,
        StorageError."""
        self._folder = store / FOLDER
        self._by_xid: dict[str, PreparedTransaction] = {}
        self._ending: list[PreparedTransaction] = []
        """Ended transactions whose end may not be durable in the log yet."""
        self._open: list[tuple[Path, AppendFile]] = []
        """Files that are not durable yet."""
        self._changed = self._others_changed = False
        for transaction in (*read_prepared(store), *self._others()):
            if transaction.seq <= up_to and not 0 < transaction.ended_seq <= up_to and self._is_whole(transaction):
                self._by_xid[transaction.xid] = replace(transaction, ended_seq=0)
        self._remove_others()

    @property
    def folder(self) -> Path:
        """The folder with the files."""
        return self._folder

    @property
    def pending(self) -> list[PreparedTransaction]:
        """The transactions that are neither committed nor rolled back, oldest first."""
        return sorted(self._by_xid.values(), key=lambda transaction: transaction.seq)

    def find(self, xid: str) -> PreparedTransaction | None:
        """Returns a pending transaction."""
        return self._by_xid.get(xid)

    def path(self, transaction: PreparedTransaction) -> Path:
        """Returns the file of a transaction with captured rows."""
        return self._folder / transaction.file_name

    def note(self, transaction: PreparedTransaction) -> None:
        """Adds a transaction without captured rows."""
        self._replace(transaction)
        self._by_xid[transaction.xid] = transaction
        self._others_changed = True

    def put_aside(self, transaction: PreparedTransaction, header: bytes, pieces: Iterable[bytes | memoryview]) -> None:
        """Adds a transaction with captured rows, whose events ``pieces`` follow the ``header`` in its file. Raises
        StorageError."""
        self._replace(transaction)
        make_folder(self._folder)
        if len(self._open) >= _MAX_OPEN:
            self._close_durably()
        path, size = self.path(transaction), 0
        with storage_errors(path):
            fd = files.layer.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                content = append.create(path, fd)
            except BaseException:
                files.layer.close(fd)
                raise
            self._open.append((path, content))
            for piece in chain((header,), pieces):
                content.append(memoryview(piece))
                size += len(piece)
        self._by_xid[transaction.xid] = replace(transaction, offset=len(header), size=size)
        self._changed = True

    def end(self, transaction: PreparedTransaction, seq: int) -> None:
        """Marks a pending transaction as committed or rolled back at ``seq``. Its file stays until :meth:`forget`."""
        del self._by_xid[transaction.xid]
        self._ending.append(replace(transaction, ended_seq=seq))
        self._mark(transaction)

    def drop(self, transaction: PreparedTransaction) -> None:
        """Removes a pending transaction, as if it had never been prepared."""
        del self._by_xid[transaction.xid]
        self._mark(transaction)
        if transaction.size:
            self._close(self.path(transaction))
            with suppress(OSError):
                files.layer.unlink(self.path(transaction))

    def sync(self) -> None:
        """Makes all changes durable. Call this before anything after them is handed to the log. Raises
        StorageError."""
        if not self._changed and not self._others_changed:
            return
        make_folder(self._folder)
        self._close_durably()
        transactions = sorted((*self._by_xid.values(), *self._ending), key=lambda transaction: transaction.seq)
        if self._others_changed:
            self._write(
                OTHERS_NAME, [transaction for transaction in transactions if not transaction.size], durable=False
            )
            self._others_changed = False
        if self._changed:
            self._write(LIST_NAME, [transaction for transaction in transactions if transaction.size], durable=True)
            self._changed = False

    def forget(self, durable_seq: int) -> None:
        """Removes the transactions whose end is durable in the log. Until the lists change next, they still name
        them."""
        kept = [transaction for transaction in self._ending if transaction.ended_seq > durable_seq]
        if len(kept) == len(self._ending):
            return
        for transaction in self._ending:
            if transaction.ended_seq <= durable_seq and transaction.size:
                with suppress(OSError):  # the next start removes it
                    files.layer.unlink(self.path(transaction))
        self._ending = kept

    def close(self) -> None:
        """Closes the files, durable or not."""
        for _, content in self._open:
            content.close()
        self._open.clear()

    def _mark(self, transaction: PreparedTransaction) -> None:
        """Notes that the list changes in which a transaction is."""
        if transaction.size:
            self._changed = True
        else:
            self._others_changed = True

    def _write(self, name: str, listed: list[PreparedTransaction], *, durable: bool) -> None:
        document = {"version": VERSION, "transactions": [asdict(transaction) for transaction in listed]}
        replace_file(self._folder / name, json.dumps(document, indent=1).encode() + b"\n", durable=durable)

    def _others(self) -> list[PreparedTransaction]:
        try:
            return _read(self._folder / OTHERS_NAME)
        except DamagedError as error:
            log.warning("damaged list of prepared XA transactions without captured rows ignored", error=str(error))
            return []

    def _replace(self, transaction: PreparedTransaction) -> None:
        """A server has only one transaction of an xid at a time, so the end of an earlier one was not seen."""
        earlier = self._by_xid.get(transaction.xid)
        if earlier is not None:
            self.drop(earlier)

    def _close_durably(self) -> None:
        while self._open:
            path, content = self._open[-1]
            with storage_errors(path):
                content.sync()
            self._open.pop()
            content.close()

    def _close(self, path: Path) -> None:
        for at, (open_path, content) in enumerate(self._open):
            if open_path == path:
                content.close()
                del self._open[at]
                return

    def _is_whole(self, transaction: PreparedTransaction) -> bool:
        if not transaction.size:
            return True
        path = self.path(transaction)
        with storage_errors(path):
            size = content_size(path) if path.exists() else -1
        if size != transaction.size:
            log.warning(
                "the file of a prepared XA transaction is missing or has the wrong size, and is ignored; capture looks "
                "for the transaction in the source's binlog if it is committed",
                xid=transaction.xid,
                file=str(path),
                size=max(0, size),
                wanted=transaction.size,
            )
        return size == transaction.size

    def _remove_others(self) -> None:
        """Removes the files of transactions that are not listed."""
        kept = {transaction.file_name for transaction in self._by_xid.values() if transaction.size} | {
            LIST_NAME,
            OTHERS_NAME,
        }
        with suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                if name not in kept:
                    remove_file(self._folder / name)
