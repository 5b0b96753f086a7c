"""The store's account: all its changes in the order of seq, as ``cdc tail`` prints them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np

from cdc.binlog.entry import EntryFlag, format_gtid
from cdc.config import DestinationConfig
from cdc.store.reader.reader import StoreReader
from tests.fault.support import command
from tests.soak.histories.accounts import Account, Change, Transaction, ddl, gtid_source


def read_store(config: DestinationConfig) -> Account:
    """Reads the whole store of a destination whose capture has ended."""
    words = command(config, "tail", "--from", "earliest", "--no-follow", "--json", "--source-values")
    with (config.file.parent / "tail.log").open("w+", encoding="utf-8") as errors:
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8") as process:
            assert process.stdout is not None
            account = Account(list(transactions(process.stdout)))
        errors.seek(0)
        assert process.returncode == 0, f"cdc tail ended with {process.returncode}: {errors.read()[-2000:]}"
    _add_gtids(account, config)
    return account


def transactions(lines: Iterable[str]) -> Iterable[Transaction]:
    """Yields the transactions of the lines of ``cdc tail --json``, whose seqs have to rise."""
    newest = 0
    for seq, changes in groupby((json.loads(line) for line in lines), key=lambda change: int(change["seq"])):
        assert seq > newest, f"seq {seq} comes after {newest}"
        newest = seq
        group = list(changes)
        assert len({change["gtid"] for change in group}) == 1, f"several GTIDs have the seq {seq}"
        yield Transaction(group[0]["gtid"], tuple(map(_change, group)))


def _change(line: dict[str, Any]) -> Change:
    if line["op"] == "ddl":
        return ddl(line["sql"])
    before, after = line["before"], line["after"]
    return Change(
        line["op"],
        line["table"],
        None if before is None else before["token"],
        None if after is None else after["token"],
    )


def _add_gtids(account: Account, config: DestinationConfig) -> None:
    """Adds the GTIDs of all index entries, which also count transactions without captured changes. A kill may have lost
    some of these."""
    for entries in StoreReader(config.store.path).all_entries():
        for entry in np.array(entries):
            last, flags = format_gtid(entry), int(entry["flags"])
            assert not flags & EntryFlag.LOST
            if last is None:
                assert flags & EntryFlag.POSITION, f"seq {entry['seq']} has no GTID"
                continue
            source, number = gtid_source(last)
            numbers = range(number - int(entry["gtid_count"]) + 1, number + 1)
            stored_numbers = account.gtids.setdefault(source, set())
            assert stored_numbers.isdisjoint(numbers), f"a GTID of {source} in {numbers} is there twice"
            stored_numbers.update(numbers)
