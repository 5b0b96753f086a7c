"""A small Delta table without Spark, and the report of a verification that could have been made of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from cdc.lake.verify.report import ChecksumResult, HistoryReport, LedgerResult, TableReport, VerificationReport

TABLE = "shop.people"
REPORT = VerificationReport(
    "shop",
    HistoryReport("gtid"),
    [
        TableReport(
            TABLE, "upsert", 3, 1, 4711, LedgerResult(ok=True, entries=2),
            ChecksumResult(ok=True, chunks=16, seq=4711, gtids="6a0e9d1e-0000-0000-0000-000000000000:1-12", total=99),
        )
    ],
)  # fmt: skip


def make_lake(lake: Path) -> Path:
    """Writes the table ``shop.people`` of two versions, each with a file, and returns its folder."""
    folder = lake / "shop" / "people"
    write_deltalake(folder, pa.table({"id": [1, 2], "town": ["a b:c/d%é", "a b:c/d%é"]}), partition_by=["town"])
    write_deltalake(folder, pa.table({"id": [7], "town": pa.array([None], pa.string())}), mode="append")
    return folder
