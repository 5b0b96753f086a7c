"""Rows of a table as Arrow record batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from cdc.decode.cursor import Part
from cdc.decode.decoder import TARGET_BYTES, DecodeStats, decode_transactions
from cdc.decode.history import TableHistory, history_of
from cdc.decode.layout import Images
from cdc.decode.plans import DEFAULT_POLICIES, ValuePolicies
from cdc.decode.transactions import ALL_TABLES, open_paths, open_range
from cdc.schemas import Schemas, TableSchema


def decode_range(
    path: Path | str,
    offset: int,
    length: int,
    *,
    table: str,
    images: Images = "after",
    after_seq: int = 0,
    upto_seq: int | None = None,
    columns: Sequence[str] | None = None,
    schema: TableSchema | None = None,
    policies: ValuePolicies = DEFAULT_POLICIES,
    part: Part | None = None,
    table_mask: int = ALL_TABLES,
    target_bytes: int = TARGET_BYTES,
    stats: DecodeStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode one table's rows of a byte range of a segment (a path, or the URI of a staged one) that holds whole
    transactions, its index beside it.

    Yields record batches of about ``target_bytes`` of row events each (at least one event). Their columns: ``_op``
    int8 (0 delete, 1 insert, 2 update), ``_seq`` int64, ``_row`` int64 (ordinal of the row event among the table's
    in its transaction, times 2**32, plus the row), ``_commit_time`` timestamp (µs, UTC), ``_gtid`` string, then the
    table's own (``columns`` of them).

    ``images="after"``: the new row, the old one of a delete; an update that changes the key's bytes gives first a
    delete of the old row, with the same ``_seq`` and ``_row``. ``images="both"``: one row for each change, and behind
    the own columns ``_before``, a struct of the old row, null for inserts.
    Only transactions with ``after_seq`` < seq ≤ ``upto_seq`` are read. ``schema`` is the table in
    ``information_schema`` at that place: it tells what table maps do not (names where the server is MySQL 5.6 or 5.7;
    MariaDB's UUID, INET and VECTOR).

    ``part``: only this part of the range's one transaction, see :func:`~cdc.decode.parts.split_transaction`.
    ``table_mask``: only transactions with one of these bits in their index entry, which says what tables have rows.

    Where the table is altered inside the range, later batches have the later schema; :func:`layouts` tells
    beforehand.
    Raises DamagedError, UnsupportedEventError, UnsupportedTypeError, SourceRefusedError (metadata or row image
    not FULL), UsageError, StorageError.
    """
    return decode_transactions(
        open_range(path, offset, length, table_mask).between(after_seq, upto_seq),
        table=table,
        images=images,
        columns=columns,
        history=TableHistory.always(schema),
        policies=policies,
        part=part,
        target_bytes=target_bytes,
        stats=stats,
    )


def read(
    *paths: Path | str,
    table: str,
    images: Images = "after",
    columns: Sequence[str] | None = None,
    after_seq: int = 0,
    upto_seq: int | None = None,
    schemas: Schemas | None = None,
    policies: ValuePolicies = DEFAULT_POLICIES,
    target_bytes: int = TARGET_BYTES,
    stats: DecodeStats | None = None,
) -> Iterator[pa.RecordBatch]:
    """Decode one table's rows of binlog files, segments or stores (folders), one after another, as
    :func:`decode_range` does.

    ``schemas``: the tables in ``information_schema`` when the files were written; without it, those that the store of a
    segment keeps. A file needs no index: without one it is verified and framed first. The epoch in the ``_seq`` of
    files that are no segments is 0. Batches come as they are decoded: memory is bounded by ``target_bytes`` and the
    largest row event, not by the files. Damage in a file is raised after the rows before it. Raises also UsageError for
    a path that is not there.
    """
    for transactions, one, damage in open_paths(paths):
        yield from decode_transactions(
            transactions.between(after_seq, upto_seq),
            table=table,
            images=images,
            columns=columns,
            history=history_of(one, table) if schemas is None else TableHistory.always(schemas.tables.get(table)),
            policies=policies,
            target_bytes=target_bytes,
            stats=stats,
        )
        if damage is not None:
            raise damage
