"""Generates ``prepared-v1``, the folder of prepared XA transactions of a store. Run it for a new version only."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from cdc.store.formats.prepared import FOLDER, PreparedTransaction, PreparedTransactions
from cdc.store.formats.segment_header import make_segment_header
from cdc.testing.binlog import BinlogBuilder
from tests.support.rare_events import xa_transaction

HERE = Path(__file__).parent


def main() -> None:
    log = BinlogBuilder()
    xa_transaction(log, "shop", one_phase=False, values=[1, 2, 3])
    header = make_segment_header(log.events[0], "binlog.000001", 4, 1)
    with TemporaryDirectory() as folder, closing(PreparedTransactions(Path(folder), 0)) as prepared:
        gtid = "01010101-0101-0101-0101-010101010101:1"
        prepared_transaction = PreparedTransaction(
            "x'6162',x'',1", 17179869184 + log.pos, 1700000000000001, gtid, ("shop.orders",), "5f0c3a9be1d27460"
        )
        prepared.put_aside(prepared_transaction, header, log.events[1:])
        prepared.note(PreparedTransaction("x'6364',x'65',7", 17179869184 + 900, 1700000000000002))
        ended = PreparedTransaction("x'66',x'',1", 17179869184 + 901, 1700000000000003, None, ("shop.items",))
        prepared.put_aside(ended, header, log.events[1:])
        pending = prepared.find(ended.xid)
        assert pending is not None
        prepared.end(pending, 17179869184 + 5000)
        prepared.sync()
        shutil.copytree(Path(folder) / FOLDER, HERE / "prepared-v1", dirs_exist_ok=True)


if __name__ == "__main__":
    main()
