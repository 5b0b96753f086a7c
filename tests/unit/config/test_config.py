"""The sections of the configuration file: accepted values, and the message for each wrong one."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from cdc.config import (
    ApplyOverrides,
    DestinationConfig,
    SparkConfig,
    StartPosition,
    load,
    parse,
)
from cdc.store.reader.batch_builder import Limits
from cdc.store.retention.cleaner import RetentionRules
from cdc.store.retention.disk import Ratios
from cdc.store.writer.durability import FlushPolicy
from tests.support.configurations import FILE, GONE, document, message

ROOT = Path(__file__).resolve().parents[3]


def test_defaults_and_paths() -> None:
    config = parse(document(), FILE)
    assert config.name == "shop"
    assert config.file == FILE
    assert (config.source.flavor, config.source.host, config.source.port, config.source.user) == (
        "mysql",
        "db.example",
        3306,
        "cdc",
    )
    assert config.store.path == Path("/srv/towpath/data/shop/store")
    assert config.meta.path == Path("/srv/towpath/data/shop/meta")
    assert config.apply.target == "/srv/towpath/lake"
    assert config.apply.mode == "upsert"
    assert config.batch.lease_s == 3600
    assert config.store.retain.acked_for == 72 * 3600


def test_everything_given() -> None:
    config = parse(
        document(
            source__url="mariadb://c%40c@[::1]",
            source__password_file="shop.password",
            source__start={"file": "binlog.000003"},
            source__heartbeat_s="30s",
            tables__exclude=[r"shop\.log_.*"],
            tables__overrides={"shop.log": {"mode": "append"}, "shop.x": {"keys": ["a", "b"]}},
            store__retain={"acked_for": "1.5d", "max_bytes": 10**12},
            batch__max_wait_s="2s",
            apply__target="s3a://lake/raw",
            spark__remote="sc://spark:15002",
            spark__conf={"spark.executor.cores": 2, "spark.ui.enabled": False},
        ),
        FILE,
    )
    assert (config.source.flavor, config.source.user, config.source.host, config.source.port) == (
        "mariadb",
        "c@c",
        "::1",
        3306,
    )
    assert config.source.password_file == FILE.parent / "shop.password"
    assert config.source.start == StartPosition(file="binlog.000003", pos=4)
    assert config.source.heartbeat_s == 30
    assert config.store.retain.acked_for == 1.5 * 86400
    assert config.batch.max_wait_s == 2
    assert config.apply.target == "s3a://lake/raw"
    assert config.spark.conf == {"spark.executor.cores": "2", "spark.ui.enabled": "false"}
    assert config.table_apply("shop.log").mode == "append"
    assert config.table_apply("shop.x").keys == ("a", "b")
    assert config.table_apply("shop.other").mode == "upsert"


def test_servers_of_a_source() -> None:
    standbys = ["db2.example", "[::1]:3307", "mysql://other@db3.example:3308"]
    config = parse(document(source__standbys=standbys), FILE)
    assert [(server.address, server.user) for server in config.source.servers()] == [
        ("db.example:3306", "cdc"),
        ("db2.example:3306", "cdc"),
        ("[::1]:3307", "cdc"),
        ("db3.example:3308", "other"),
    ]
    assert config.at_server(None) is config and config.at_server("gone:3306") is config
    moved = config.at_server("db2.example:3306")
    assert (moved.source.host, moved.source.server_id, moved.name) == ("db2.example", config.source.server_id, "shop")
    assert moved.at_server("db3.example:3308").source.port == 3308


def test_a_connection_brings_the_user() -> None:
    url = "mysql://db.example:3306"
    config = parse(document(source__url=url, source__connection="shop_db", source__password_env=None), FILE)
    assert (config.source.user, config.source.address) == ("", "db.example:3306")


@pytest.mark.parametrize(
    ("standby", "expected"),
    [
        ("db.example:3306", "standbys: db.example:3306 is given twice"),
        ("mariadb://cdc@db2.example", "name different products"),
        ("db2.example:port", "has no valid port"),
        ("mysql://cdc:secret@db2.example", "must not hold the password"),
        ("mysql://db2.example", "has no user"),
        ("db2.example/shop", "must end with the port"),
    ],
)
def test_standbys_that_cannot_be(standby: str, expected: str) -> None:
    text = message(source__standbys=[standby])
    assert expected in text and "secret" not in text


def test_policies_of_a_table_win_one_by_one() -> None:
    config = parse(
        document(
            apply__zero_dates="fail",
            apply__types={"TINYINT(1)": "boolean", "time": "microseconds"},
            apply__columns={"Note": "drop", "mail": "hash", "phone": {"mask": 4}, "nick": {"rename": "alias"}},
            apply__hash_key_file="hash.key",
            tables__overrides={
                "shop.a": {"columns": {"note": "keep", "phone": None}, "zero_dates": None, "types": {"time": "text"}},
                "shop.b": {"mode": "append"},
            },
        ),
        FILE,
    )
    assert config.apply.hash_key_file == FILE.parent / "hash.key"
    table_a, other = config.table_apply("shop.a"), config.table_apply("shop.b")
    assert {name: str(policy) for name, policy in table_a.columns.items()} == {
        "note": "keep",
        "mail": "hash",
        "phone": "null",
        "nick": "rename: alias",
    }
    assert (table_a.zero_dates, table_a.types) == ("null", {"tinyint(1)": "boolean", "time": "text"})
    assert {name: str(policy) for name, policy in other.columns.items()} == {
        "note": "drop",
        "mail": "hash",
        "phone": "mask: 4",
        "nick": "rename: alias",
    }
    assert (other.zero_dates, other.types, other.mode) == ("fail", config.apply.types, "append")
    assert parse(document(apply__zero_dates=None), FILE).apply.zero_dates == "null"  # YAML's null


@pytest.mark.rule("canal-server-10")
@pytest.mark.parametrize(
    ("db", "table", "included"),
    [
        ("shop", "orders", True),
        ("shop", "a.b", True),
        ("Shop", "orders", False),
        ("workshop", "orders", False),
        ("shop", "log_1", False),
        ("CRM", "People", True),
        ("mysql", "user", False),
        ("sys", "x", False),
        ("towpath_plan_1_0a_1", "x", False),  # a scratch schema of `cdc plan --server`
    ],
)
def test_tables_are_matched_whole(db: str, table: str, included: bool) -> None:
    config = parse(
        document(
            tables__include=[r"shop\..*", r"(?i)crm\.people", r"(mysql|sys|towpath_.*)\..*"],
            tables__exclude=[r"shop\.log_\d"],
        ),
        FILE,
    )
    assert config.tables.includes(db, table) is included


@pytest.mark.rule("canal-server-8", "canal-server-14")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # unknown keys
        ({"sorce": {}}, "sorce: unknown key; did you mean source? (known here: source, tables, "),
        (
            {"batch__max_byte": 5},
            "batch.max_byte: unknown key; did you mean max_bytes? (known here: max_b",
        ),
        (
            {"tables__overrides": {"shop.a": {"mod": "x"}}},
            "tables.overrides.shop.a.mod: unknown key; did you mean mode?",
        ),
        (
            {"source__start": {"file": "b.1", "po": 4}},
            "source.start.po: unknown key; did you mean pos?",
        ),
        # missing
        ({"source": GONE}, "source: is missing; add it"),
        ({"apply__target": GONE}, "apply.target: is missing; add it"),
        ({"tables__include": None}, "tables.include: has no value, but must be a list"),
        ({"tables__include": []}, "tables.include: must not be empty"),
        ({"store__path": ""}, "store.path: '' must not be empty"),
        # source
        ({"source": 5}, "source: 5 must be a section of keys"),
        ({"source__url": "postgres://u@h"}, "source.url: 'postgres://u@h' must begin with mysql:// or mariadb://"),
        ({"source__url": "mysql://h"}, "source: 'mysql://h' has no user; write it like mysql://user@host:3306"),
        ({"source__url": "mysql://u@"}, "source.url: 'mysql://u@' has no host; write it like"),
        ({"source__url": "mysql://u@h:x"}, "source.url: 'mysql://u@h:x' has no valid port; write it like"),
        ({"source__url": "mysql://u@h/db"}, "source.url: 'mysql://u@h/db' must end with the port; choose"),
        ({"source__url": "binlog:///b"}, "source: server_id has no effect with a folder of binlog files (binlog:///b)"),
        ({"source": {"url": "binlog://b/c"}}, "source.url: 'binlog://b/c' must name a folder by its absolute path;"),
        ({"source": {"url": "binlog:///"}}, "source.url: 'binlog:///' must name a folder by its absolute path; write"),
        (
            {"source": {"url": "binlog:///b", "start": "now"}},
            "source: start: now needs a server, and url names a folder",
        ),
        ({"source": {"url": "binlog:///b", "start": "snapshot"}}, "source: start: snapshot needs a server, and url"),
        ({"source": {"url": "binlog:///b", "start": {"gtid": "x"}}}, "source: start.gtid: 'x' is no GTID set of MySQL"),
        ({"source__schemas": "s.json"}, "source: schemas has no effect with a server, which describes its tables"),
        ({"source__server_id": 0}, "source.server_id: 0 must be at least 1"),
        ({"source__server_id": 2**32}, "source.server_id: 4294967296 must be at most 4294967295"),
        ({"source__server_id": True}, "source.server_id: True must be a number"),
        ({"source__server_id": "many"}, "source.server_id: 'many' must be a whole number"),
        ({"source__start": "later"}, "source.start: 'later' must be one of snapshot, earliest, now"),
        ({"source__start": {}}, "source.start.file: is missing; add it"),
        (
            {"source__start": {"file": "b.1", "gtid": "0-1-2"}},
            "source.start.gtid: contradicts the key beside it; keep one of file, gtid and time",
        ),
        (
            {"source__start": {"file": "b.1", "time": "2026-01-01"}},
            "source.start.time: contradicts the key beside it; keep one of file, gtid and time",
        ),
        ({"source__start": {"gtid": ""}}, "source.start.gtid: '' must not be empty"),
        ({"source__start": {"gtid": "0-1-2"}}, "source: start.gtid: '0-1-2' is not a set of GTIDs like"),
        (
            {"source__url": "mariadb://u@h", "source__start": {"gtid": "0-1-2,0-2-3"}},
            "source: start.gtid: 0-1-2 and 0-2-3 have the same domain",
        ),
        (
            {"source__start": {"time": "2026-01-01 10:00:00"}},
            "source.start.time: '2026-01-01 10:00:00' is not a time with its zone; write it like",
        ),
        ({"source__start": {"time": "soon"}}, "source.start.time: 'soon' is not a time with its zone; write it like"),
        ({"source__start": {"time": 5}}, "source.start.time: 5 is not a time with its zone; write it like"),
        ({"source__start": {"file": "binlog"}}, "source.start.file: 'binlog' is not the name of a binlog file like"),
        ({"source__start": {"file": "b.1", "pos": 1}}, "source.start.pos: 1 must be at least 4"),
        (
            {"source__password_env": "A", "source__password_file": "b"},
            "source: password_env and password_file contradict each other; keep one of them",
        ),
        ({"source__standbys": "db2"}, "source.standbys: 'db2' must be a list: [one, two]"),
        ({"source__heartbeat_s": "10 apples"}, "source.heartbeat_s: '10 apples' is not a duration; write it like 30s"),
        # tables
        ({"tables__include": "shop"}, "tables.include: 'shop' must be a list: [one, two]"),
        ({"tables__exclude": ["("]}, "tables.exclude: '(' is not a regular expression of RE2: missing )"),
        (
            {"tables__overrides": {"shop.A": {}}, "tables__lower_case_table_names": 1},
            "tables: overrides: 'shop.A' is 'shop.a' with lower_case_table_names 1; write it so",
        ),
        (
            {"tables__overrides": {"shop": {}}},
            "tables: overrides: 'shop' is not the name of a table; write it as db.table",
        ),
        (
            {"tables__overrides": {"crm.a": {}}},
            "tables: overrides: 'crm.a' is not among the tables that include and exclu",
        ),
        (
            {"tables__overrides": {"shop.a": {"keys": []}}},
            "tables.overrides.shop.a: keys must name at least one column",
        ),
        (
            {"tables__overrides": {"shop.a": {"mode": "append", "keys": ["id"]}}},
            "tables.overrides.shop.a: keys and mode append contradict each other",
        ),
        (
            {"tables__overrides": {"shop.a": {"mode": "history"}}},
            "tables.overrides.shop.a.mode: 'history' must be one of upsert, soft_delete, append, scd2",
        ),
        # policies
        (
            {"tables__overrides": {"shop.a": {"columns": {"x": "hash"}}}},
            "tables.overrides.shop.a.columns.x: hash needs a key, and none is configured. Name it with apply.hash_key_env or",
        ),
        (
            {"tables__overrides": {"shop.a": {"columns": {"x": "hsh"}}}},
            "tables.overrides.shop.a.columns.x: 'hsh' is not a policy; write drop, null, hash, keep, text, bytes, {mask: 4} or {rename: ",
        ),
        ({"apply__columns": {"x": "mask"}}, "apply.columns.x: 'mask' needs a value; write drop, null, hash"),
        ({"apply__columns": {"x": {"mask": -1}}}, "apply.columns.x: mask: -1 must be the number of characters to keep"),
        ({"apply__columns": {"x": {"mask": True}}}, "apply.columns.x: mask: True must be the number of characters to"),
        (
            {"apply__columns": {"x": {"mask": 1, "rename": "y"}}},
            "apply.columns.x: {'mask': 1, 'rename': 'y'} is not a pol",
        ),
        ({"apply__columns": {"x": ["drop"]}}, "apply.columns.x: is not a policy; write drop, null, hash, keep"),
        ({"apply__columns": {"x": {"rename": ""}}}, "apply.columns.x: rename: '' must be a column's new name"),
        (
            {"apply__columns": {"x": {"rename": "_SEQ"}}},
            "apply.columns.x: rename: '_SEQ' is a name that Towpath uses itself; choose another",
        ),
        (
            {"apply__columns": {"x": {"rename": "z"}, "y": {"rename": "Z"}}},
            "apply.columns: 2 columns are renamed to z. Give each a name of its own.",
        ),
        (
            {"apply__columns": {"x": "drop", "X": "null"}},
            "apply.columns: the column x is given 2 times; keep one of",
        ),
        ({"apply__columns": ["x"]}, "apply.columns: must be a section of keys"),
        (
            {"apply__keys": ["Id"], "apply__columns": {"ID": "drop"}},
            "apply.columns.id: drop and keys contradict each other: a key must tell rows apart. Remove one of them; hash",
        ),
        (
            {"tables__overrides": {"shop.a": {"keys": ["id"]}}, "apply__columns": {"id": {"mask": 3}}},
            "tables.overrides.shop.a.columns.id: mask: 3 and keys contradict each other: a key must tell rows apart.",
        ),
        (
            {"apply__hash_key_env": "A", "apply__hash_key_file": "b"},
            "apply: hash_key_env and hash_key_file contradict each other; keep one of them",
        ),
        (
            {"apply__types": {"tinyint": "boolean"}},
            "apply.types: 'tinyint' is not a type that can be mapped; choose from tin",
        ),
        (
            {"apply__types": {"time": "boolean"}},
            "apply.types: time: 'boolean' must be microseconds (or text, as without",
        ),
        ({"apply__types": "boolean"}, "apply.types: 'boolean' must be a section of keys"),
        ({"apply__zero_dates": "zero"}, "apply.zero_dates: 'zero' must be one of null, fail"),
        # store, meta
        (
            {"store__kind": "memory"},
            "store: path has no effect with kind: memory, which keeps nothing; remove it",
        ),
        ({"store__kind": "disk"}, "store.kind: 'disk' must be one of file"),
        (
            {"store__buffer_size": 16384},
            "store: buffer_size belongs to kind: memory; remove it, or change kind",
        ),
        (
            {"store__standby": {"role": "sync_master", "listen": "h:1", "max_behind_bytes": 1}},
            "store.standby.max_behind_bytes: has no effect, since capture never waits for a standby while it reads",
        ),
        ({"store__flush": "always"}, "store.flush: 'always' must be one of sync, async"),
        (
            {"store__flush_interval_s": 1},
            "store: flush_interval_s has no effect with flush: sync; remove it, or write flush: async",
        ),
        (
            {"store__flush": "async", "store__flush_interval_s": "20s"},
            "store: flush_thorough_interval_s 10 is below flush_interval_s 20; make it the larger of the two",
        ),
        ({"store__flush": "async", "store__flush_least_pages": -1}, "store.flush_least_pages: -1 must be at least 0"),
        ({"store__segment_bytes": 1}, "store.segment_bytes: 1 must be at least 65536"),
        ({"store__retain": {"acked_for": "72x"}}, "store.retain.acked_for: '72x' is not a duration; write it like"),
        (
            {"meta__kind": "memory"},
            "meta: path has no effect with kind: memory, which keeps nothing; remove it",
        ),
        ({"meta__kind": "zookeeper"}, "meta: kind zookeeper needs hosts; add hosts: h1:2181,h2:2181"),
        ({"server__ha": {"address": "10.0.0.7"}}, "server.ha needs meta.kind: zookeeper, which the servers share"),
        (
            {"server__ha": {"address": "::1"}},
            "server.ha.address: '::1' is an IPv6 address, which Canal's tree has no place for; give a host's name",
        ),
        (
            {"server__ha": {"address": "0.0.0.0"}},
            "server.ha.address: '0.0.0.0' is no address that others can reach",
        ),
        (
            {"server__ha": {"address": "10.0.0.7"}, "server__canal": {"enabled": True}},
            "server: ha.address 10.0.0.7 and canal.host 127.0.0.1 contradict each other: nobody else reaches it there",
        ),
        (
            {
                "server__ha": {"address": "10.0.0.7"},
                "meta__kind": "zookeeper",
                "meta__hosts": "h1:2181",
                "source__standbys": ["db2:3306"],
            },
            "server.ha and source.standbys contradict each other",
        ),
        (
            {
                "server__ha": {"address": "10.0.0.7"},
                "meta__kind": "zookeeper",
                "meta__hosts": "h1:2181",
                "store__standby": {"role": "standby", "master": "a:1", "listen": "b:1"},
            },
            "server.ha and store.standby contradict each other",
        ),
        (
            {"server__ha": {"address": "10.0.0.7", "session_timeout_s": "0.5s"}},
            "server.ha.session_timeout_s: 0.5 must be at least 1.0",
        ),
        ({"meta__hosts": "h1:2181"}, "meta: hosts belongs to kind: zookeeper; remove it, or change kind"),
        ({"meta__root": "/other"}, "meta: root belongs to kind: zookeeper; remove it, or change kind"),
        (
            {"meta__kind": "zookeeper", "meta__hosts": "h1, h2"},
            "meta.hosts: 'h1, h2' must be ZooKeeper's servers, like h1:2181,h2:2181",
        ),
        (
            {"meta__kind": "zookeeper", "meta__hosts": "h1:2181/app,h2:2181"},
            "meta.hosts: 'h1:2181/app,h2:2181' must be ZooKeeper's servers, like h1:2181,h2:2181, and at most one node",
        ),
        (
            {"meta__kind": "zookeeper", "meta__hosts": "h1:2181,h2:2181/"},
            "meta.hosts: 'h1:2181,h2:2181/' must be ZooKeeper's servers",
        ),
        (
            {"meta__kind": "zookeeper", "meta__hosts": "h1:2181/a//b"},
            "meta.hosts: 'h1:2181/a//b' must be ZooKeeper's servers",
        ),
        (
            {"meta__kind": "zookeeper", "meta__hosts": "h1:2181,h2:70000"},
            "meta.hosts: 'h1:2181,h2:70000' names h2:70000, which has no port from 1 to 65535",
        ),
        (
            {"meta__kind": "zookeeper", "meta__hosts": "h1:2181,h2:2181,h1:2181"},
            "meta.hosts: 'h1:2181,h2:2181,h1:2181' names h1:2181 twice",
        ),
        (
            {"meta__kind": "zookeeper", "meta__hosts": "h1:2181/../app"},
            "meta.hosts: 'h1:2181/../app' has a node that is named . or ..",
        ),
        (
            {"meta__kind": "zookeeper", "meta__hosts": "h1:2181", "meta__root": "otter"},
            "meta.root: 'otter' must be the path of a node, like /otter/canal",
        ),
        (
            {"meta__flush": "sync"},
            "meta.flush: is not a key: kind: mixed, for a store in memory, is stored each second; leave it out",
        ),
        (
            {"meta__period_s": 2},
            "meta.period_s: is not a key: kind: mixed, for a store in memory, is stored each second",
        ),
        (
            {"meta__path": "./data/shop/store"},
            "store.path and meta.path are the same folder, /srv/towpath/data/shop/store",
        ),
        (
            {"store__path": "./lake/store"},
            "store.path (/srv/towpath/lake/store) lies inside apply.target (/srv/towpath/l",
        ),
        # batch, apply, spark, airflow
        ({"batch__max_bytes": "1GB"}, "batch.max_bytes: '1GB' must be a whole number"),
        ({"batch__max_transactions": 0}, "batch.max_transactions: 0 must be more than 0"),
        ({"batch__lease_s": 0}, "batch.lease_s: 0 must be more than 0"),
        ({"apply__mode": "merge"}, "apply.mode: 'merge' must be one of upsert, soft_delete, append, scd2"),
        (
            {"apply__schema_changes": "strict"},
            "apply.schema_changes: 'strict' must be one of evolve, additive, ignore, fail",
        ),
        ({"apply__on_truncate": "drop"}, "apply.on_truncate: 'drop' must be one of apply, ignore, fail"),
        (
            {"tables__overrides": {"shop.a": {"on_drop": "apply"}}},
            "tables.overrides.shop.a.on_drop: 'apply' must be one of keep, drop, fail",
        ),
        ({"apply__on_unknown_effect": "park"}, "apply.on_unknown_effect: 'park' must be one of snapshot, fail"),
        ({"apply__shared": True}, "apply.shared and apply.schema_changes: evolve contradict each other: a column"),
        (
            {"apply__shared": True, "apply__schema_changes": "additive", "apply__comments": True},
            "apply.shared and apply.comments contradict each other",
        ),
        (
            {
                "apply__shared": True,
                "apply__schema_changes": "additive",
                "apply__target": "s3a://lake/shop",
                "s3": {"log_store": "single_driver"},
            },
            "apply.shared and s3.log_store: single_driver contradict each other",
        ),
        (
            {"apply__shared": True, "apply__schema_changes": "additive", "apply__constraints": True},
            "apply.shared and apply.constraints contradict each other",
        ),
        (
            {
                "apply__shared": True,
                "apply__schema_changes": "additive",
                "tables__overrides": {"shop.a": {"schema_changes": "ignore"}},
            },
            "apply.shared and tables.overrides.shop.a.schema_changes: ignore contradict each other",
        ),
        (
            {
                "apply__shared": True,
                "apply__schema_changes": "additive",
                "apply__small_batches": {"engine": "deltalake", "max_rows": 9},
            },
            "apply.shared and apply.small_batches contradict each other",
        ),
        (
            {
                "apply__shared": True,
                "apply__schema_changes": "additive",
                "apply__catalog": {"name": "spark_catalog", "managed": True},
                "spark": {"conf": {"spark.sql.catalogImplementation": "hive"}},
            },
            "apply.shared and apply.catalog.managed contradict each other",
        ),
        (
            {"apply__mode": "scd2", "apply__constraints": True},
            "apply.constraints and mode scd2 contradict each other: rows of the past lack columns that came later",
        ),
        (
            {"apply__constraints": True, "spark": {"remote": "sc://host:15002"}},
            "apply.constraints and spark.remote contradict each other: Spark Connect cannot make columns",
        ),
        (
            {"apply__constraints": True, "apply__small_batches": {"engine": "deltalake", "max_rows": 9}},
            "apply.constraints and apply.small_batches contradict each other: delta-rs leaves tables",
        ),
        ({"apply__catalog": "main"}, "apply.catalog: 'main' must be a section of keys"),
        ({"apply__keys": "id"}, "apply.keys: 'id' must be a list: [one, two]"),
        ({"spark__master": "mars"}, "spark.master: 'mars' is not a master of Spark; write local[*]"),
        (
            {"spark__remote": "http://x"},
            "spark.remote: 'http://x' is not a Spark Connect server; write sc://host:15002",
        ),
        (
            {"spark__conf": {"executor.cores": 2}},
            "spark.conf: 'executor.cores' is not a setting of Spark; their names begin",
        ),
        ({"spark__conf": {"spark.x": None}}, "spark.conf: 'spark.x' needs one value"),
        ({"airflow__retries": -1}, "airflow.retries: -1 must be at least 0"),
        ({"apply__small_batches": {"engine": "deltalake"}}, "apply.small_batches: engine deltalake needs max_rows"),
        ({"apply__small_batches": {"max_rows": 5}}, "apply.small_batches: max_rows has no effect with engine spark"),
        ({"apply__small_batches": {"engine": "duckdb"}}, "apply.small_batches.engine: "),
    ],
)
def test_a_message_names_key_and_value(changes: dict[str, Any], expected: str) -> None:
    assert message(**changes).startswith(expected)


def test_one_message_has_all_findings() -> None:
    text = message(source__server_id=0, batch__max_bytes=0)
    assert "source.server_id: 0 must be at least 1; batch.max_bytes: 0 must be more than 0" in text


@pytest.mark.parametrize(
    "changes",
    [{"source__url": "mysql://u:Sesam@h"}, {"source__password": "Sesam"}, {"source__url": "http://u:Sesam@h"}],
)
def test_a_password_never_reaches_the_message(changes: dict[str, Any]) -> None:
    assert "Sesam" not in message(**changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"spark__master": "yarn"}, "engine deltalake and spark.master yarn contradict each other"),
        ({"apply__target": "s3a://bucket/lake"}, "engine deltalake writes to folders of this machine only"),
    ],
)
def test_merges_without_spark_need_this_machine(changes: dict[str, Any], expected: str) -> None:
    small = {"engine": "deltalake", "max_rows": 1000}
    assert expected in message(apply__small_batches=small, **changes)


def fields(section: type[BaseModel]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation)


def test_the_example_has_every_key() -> None:
    file = ROOT / "examples" / "shop.yaml"
    text = file.read_text(encoding="utf-8")
    assert load(file).tables.overrides.keys() == {"shop.audit", "shop.visits", "shop.customers"}
    names = [*fields(DestinationConfig), *fields(ApplyOverrides)]
    missing = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert not missing


def test_a_connect_servers_token_is_not_in_its_address() -> None:
    assert SparkConfig(remote="sc://spark:15002/;token=secret;user_id=shop").remote_address == "sc://spark:15002/"


def test_messages_name_classes_that_exist() -> None:
    names = set[str]()
    for module in sorted((ROOT / "cdc" / "config").glob("*.py")):
        names |= set(re.findall(r"may (?:use|set it in) (cdc(?:\.\w+)+)", " ".join(module.read_text().split())))
    assert names
    for name in names:
        module_name, _, word = name.rpartition(".")
        assert hasattr(importlib.import_module(module_name), word), name


def test_classes_of_the_library_have_the_same_defaults() -> None:
    """Programs may use the store without a configuration file."""
    config = parse(document(), FILE)
    store, retain, disk = config.store, config.store.retain, config.store.disk
    assert FlushPolicy() == FlushPolicy(
        store.flush,
        interval_s=store.flush_interval_s,
        least_pages=store.flush_least_pages,
        thorough_interval_s=store.flush_thorough_interval_s,
        slow_flush_s=store.slow_flush_s,
    )
    assert RetentionRules() == RetentionRules(
        acked_for_s=retain.acked_for,
        unacked_for_s=retain.unacked_for,
        max_bytes=retain.max_bytes,
        lost_after_s=retain.lost_after,
    )
    assert Ratios() == Ratios(disk.warn_ratio, disk.clean_ratio, disk.stop_ratio)
    limits = Limits()
    assert (limits.max_bytes, limits.max_transactions) == (config.batch.max_bytes, config.batch.max_transactions)
    assert limits.max_row_events == config.batch.max_row_events


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"ssl_ca": "ca.pem", "ssl_mode": "required"},
            "ssl_ca has no effect with ssl_mode: required; remove it, or use",
        ),
        ({"ssl_cert": "c.pem"}, "ssl_cert needs ssl_key beside it"),
        ({"ssl_key": "c.key"}, "ssl_key needs ssl_cert beside it"),
        ({"ssl_cert": "c.pem", "ssl_key": "c.key", "ssl_mode": "preferred"}, "ssl_cert needs a connection with TLS"),
        ({"ssl_mode": "strict"}, "source.ssl_mode: "),
        ({"socket": "/run/s.sock"}, "so the host in url has no effect; write mysql://USER@localhost"),
        ({"socket": "/run/s.sock", "url": "mysql://cdc@localhost:3306"}, "so the host in url has no effect"),
        (
            {"socket": "/s.sock", "url": "mysql://cdc@localhost", "ssl_mode": "required"},
            "ssl_mode has no effect beside",
        ),
    ],
)
def test_tls_and_sockets_that_cannot_be(keys: dict[str, Any], expected: str) -> None:
    assert expected in message(**{f"source__{key}": value for key, value in keys.items()})


@pytest.mark.parametrize(
    ("keys", "mode"),
    [
        ({}, "preferred"),
        ({"ssl_ca": "ca.pem"}, "verify_identity"),
        ({"ssl_cert": "c.pem", "ssl_key": "c.key"}, "required"),
        ({"ssl_mode": "verify_ca"}, "verify_ca"),
        ({"socket": "/run/s.sock", "url": "mysql://cdc@localhost"}, "disabled"),
    ],
)
def test_the_mode_of_tls_that_holds(keys: dict[str, Any], mode: str) -> None:
    assert parse(document(**{f"source__{key}": value for key, value in keys.items()}), FILE).source.tls == mode
