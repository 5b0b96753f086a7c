"""Definitions from information_schema: spellings of different versions become one."""

from __future__ import annotations

import pytest

from cdc.source import schemas


@pytest.mark.parametrize("shown", ["varchar(9) /*!100301 COMPRESSED*/", "varchar(9) /*M!100301 COMPRESSED*/"])
def test_compressed_columns_of_mariadb(shown: str) -> None:
    row = {
        "name": "c", "data_type": "varchar", "column_type": shown, "nullable": "YES", "def": "NULL", "extra": "",
        "charset": "utf8mb4", "coll": "utf8mb4_general_ci",
    }  # fmt: skip
    assert schemas._column(row).column_type == "varchar(9) /*M!100301 COMPRESSED*/"
