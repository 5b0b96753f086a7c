"""Checks that no segment, no index entry and no binlog file is missing between a store's beginning and its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cdc.base.errors import DamagedError
from cdc.binlog.positions import format_seq, split_seq
from cdc.store.formats.index import IndexFile
from cdc.store.formats.layout import segments_folder
from cdc.store.formats.missing import kept_names, read_damaged
from cdc.store.formats.segment_header import position_seq, segment_header_size


@dataclass
class FilesReport:
    """The faults of a store's files, and remarks for an operator, in sentences."""

    faults: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def check_files(path: Path) -> FilesReport:
    """Checks that the store's segments follow one another, that their indexes have every byte of them, and the checksum
    of each entry."""
    report = FilesReport()
    names = kept_names(path)
    before = None
    for number, name in enumerate(names):
        segment = segments_folder(path) / name
        start = position_seq(segment)
        if before is not None:
            _check_step(before, start, name, report)
        try:
            index = IndexFile(segment)
            for _ in index.verified_parts():
                pass
        except DamagedError as error:
            report.faults.append(str(error))
            before = None
            continue
        _check_bytes(index, name, report, is_newest=number == len(names) - 1)
        before = max(start, int(index.entries["seq"][-1])) if len(index.entries) else start
    for lost in read_damaged(path):
        report.remarks.append(
            f"the loss of the transactions {lost.first_seq} to {lost.last_seq} in {lost.segment} was accepted on "
            f"{lost.accepted}"
        )
    return report


def _check_step(before: int, start: int, name: str, report: FilesReport) -> None:
    end, begin = split_seq(before), split_seq(start)
    if end.epoch != begin.epoch:
        return
    if begin.file_number == end.file_number and begin.offset > end.offset:
        report.faults.append(f"the store lacks what lies between {format_seq(before)} and the segment {name}")
    elif begin.file_number > end.file_number + 1:
        report.faults.append(
            f"the store lacks the binlog files {end.file_number + 1} to {begin.file_number - 1}, before the segment "
            f"{name}"
        )


def _check_bytes(index: IndexFile, name: str, report: FilesReport, *, is_newest: bool) -> None:
    """Checks that each transaction of the segment begins where the one before it ends."""
    transactions = index.entries[index.entries["length"] > 0]
    if not len(transactions):
        return
    starts = transactions["offset"].astype(np.int64)
    ends = starts + transactions["length"].astype(np.int64)
    expected = np.concatenate([[segment_header_size(index.segment)], ends[:-1]])
    wrong = np.flatnonzero(starts != expected)
    lost = {
        (lost_range.offset, lost_range.offset + lost_range.length)
        for lost_range in read_damaged(index.segment.parent.parent)
    }
    for at in wrong.tolist():
        if not any(a <= int(expected[at]) and int(starts[at]) <= b for a, b in lost):
            report.faults.append(
                f"the index of {name} lacks the transactions before {format_seq(int(transactions['seq'][at]))}"
            )
    if not is_newest and not index.is_whole():
        report.faults.append(f"the index of {name} lacks the last transactions of its segment")
    if (np.diff(index.entries["seq"].astype(np.int64)) <= 0).any():
        report.faults.append(f"the index of {name} is not in order")
