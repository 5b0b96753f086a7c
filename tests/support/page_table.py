"""The preconditions of each page of the documentation, and its commands and Python blocks that cannot run in a test."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from cdc.store.formats.layout import list_segments
from cdc.testing.servers import HOST, USER, client_tool, find_kind, free_port
from cdc.testing.servers.kinds import with_own_loader
from tests.support.instances import replace
from tests.support.page_commands import blocks
from tests.support.page_runs import Page, PageRun, Step, write_destination
from tests.support.server import make_certificates

_PIP = Step(unrun="needs an index of packages; a test compares the extras with pyproject.toml")
_FAILOVER = Step(unrun="needs a master that has failed", shown_by="tests/integration/test_failover.py")
_GROUP = Step(unrun="needs two sources", shown_by="tests/integration/test_groups.py")
_SHARDS = Step(unrun="needs a source with shards", shown_by="tests/integration/test_routes.py")
_KAFKA = Step(unrun="needs three brokers", shown_by="tests/servers/canal/mq/test_push.py")
_ROOT = Step(unrun="changes the machine's users and services, as root", shown_by="tests/slow/deploy/test_services.py")
_KUBERNETES = Step(unrun="needs a cluster", shown_by="tests/slow/deploy/test_services.py")
_MADE = Step(unrun="made the environment in which this test runs")
_WHOLE = Step(unrun="is the run of all tests, or of all steps of the demo")
_CONNECT = Step(unrun="is one for each user of a machine", shown_by="tests/integration/test_connect_server.py")


# --- what pages presume


def _free_ports(run: PageRun) -> None:
    run.change(server={"http": free_port()})


def _tutorial(run: PageRun) -> Mapping[str, str]:
    return {
        "~/towpath-try": str(run.folder / "try"),
        "13306": str(free_port_of(run)),
        "make install && . .venv/bin/activate && ": "",
    }


def free_port_of(run: PageRun) -> int:
    """Returns a port that stays the same for a page."""
    file = run.folder / "port"
    if not file.exists():
        file.write_text(str(free_port()))
    return int(file.read_text())


def _airflow(run: PageRun) -> None:
    run.cdc("deploy", "print", "dags", "--to", str(run.folder / "dags"))
    run.environment |= {
        "AIRFLOW_HOME": str(run.folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(run.folder / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "CDC_CONF": str(run.folder / "conf"),
    }
    run.program("airflow", "db", "migrate")


def _airflow_with_dags(run: PageRun) -> None:
    _airflow(run)
    run.program("airflow", "dags", "reserialize")


def _forget(run: PageRun) -> None:
    """Removes the configuration, which is written next."""
    run.file.unlink()


def _alarms(run: PageRun) -> None:
    run.change(alarms={"command": ["/bin/sh", "-c", "cat >alarm.json"]})


def _archive(run: PageRun) -> None:
    run.change(store={"archive": f"file://{run.folder}/archive"})
    _finish_segment(run)
    run.cdc("archive", "upload", "shop")


def _finish_segment(run: PageRun) -> None:
    """Ends a segment of the store, and begins another one."""
    run.server.execute("FLUSH BINARY LOGS")
    run.sql("INSERT INTO people (name) VALUES ('Grace')")
    run.cdc("capture", "shop", "--until-current")


def _lose_store(run: PageRun) -> None:
    shutil.rmtree(run.folder / "data" / "shop" / "store")


def _lose_meta_too(run: PageRun) -> None:
    shutil.rmtree(run.folder / "data")


def _signing(run: PageRun) -> None:
    run.change(verify={"signing_key_file": "shop.signing.pem"})
    _capture(run)


def _capture(run: PageRun) -> None:
    run.in_background("cdc", "capture", "shop")


def _is_capturing(run: PageRun) -> bool:
    file = run.folder / "data" / "shop" / "store" / "capture.json"
    return file.exists() and b'"connected": true' in file.read_bytes()


def _verify(run: PageRun) -> None:
    _binlog_file(run)
    _capture(run)


def _binlog_file(run: PageRun) -> None:
    with run.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@log_bin_basename")
        row = cursor.fetchone()
    assert row is not None
    shutil.copy(f"{row[0]}.000001", run.folder / "binlog.000012")


def _canal(run: PageRun) -> None:
    run.change(server={"http": free_port(), "canal": {"enabled": True, "port": free_port()}})


def _memory(run: PageRun) -> None:
    usual = yaml.safe_load(run.file.read_text())["source"] if run.file.exists() else {}
    if not usual:
        write_destination(run)
        usual = yaml.safe_load(run.file.read_text())["source"]
    document = yaml.safe_load(blocks("docs/how-to/memory-store.md")[0].text)
    document["source"] |= {key: usual[key] for key in ("url", "password_env", "server_id")}
    document["server"] |= {"http": free_port()}
    document["server"]["canal"] |= {"port": free_port()}
    replace(run.file, document)


def _encrypt(run: PageRun) -> None:
    run.change(store={"encryption": {"key_file": "store.key"}})
    _finish_segment(run)
    run.tool("mysqlbinlog", client_tool("mysql9", "mysqlbinlog"))


def _newest_segment(run: PageRun) -> str:
    return list_segments(run.folder / "data" / "shop" / "store")[-1].name


def _instances(run: PageRun) -> None:
    for role in ("operator", "viewer"):
        (run.folder / "conf" / f"{role}.token").write_text("0123456789abcdef" * 2 + role)
        (run.folder / "conf" / f"{role}.token").chmod(0o600)
    shop = yaml.safe_load(blocks("docs/how-to/instances.md")[0].text)["server"] | {"http": free_port()}
    shop["canal"] |= {"port": free_port()}
    run.change(server=shop)
    billing = yaml.safe_load(run.file.read_text())
    billing["source"]["server_id"] += 1
    billing |= {"store": {"path": "./data/billing/store"}, "meta": {"path": "./data/billing/meta"}}
    billing["apply"] |= {"target": "./lake/billing"}
    replace(run.file.with_name("billing.yaml"), billing)


def _move_back(run: PageRun) -> None:
    """Makes a move undone: it is the other choice that comes next."""
    shutil.rmtree(run.folder / "large")
    (run.folder / "data" / "shop" / "store" / "moved.json").unlink()


def _plan(run: PageRun) -> None:
    (run.folder / "migrations").mkdir()
    for name in ("migrations/0042_add_country.sql", "migration.sql"):
        (run.folder / name).write_text(
            "USE shop;\n\n"
            "ALTER TABLE customers MODIFY age INT, ADD COLUMN country CHAR(2) NOT NULL DEFAULT 'DE';\n\n"
            "ALTER TABLE orders ADD COLUMN u CHAR(36) DEFAULT (UUID());\n"
        )
    root = find_kind("mariadb11").root()
    dump = with_own_loader(root, root / "usr/bin/mariadb-dump")
    run.tool("mysqldump", [*dump, f"-h{HOST}", f"-P{run.server.port}", f"-u{USER}", "-ppw", "--skip-ssl"])


def _gap(run: PageRun) -> None:
    """Lets the store begin behind the cursor."""
    run.sql("INSERT INTO orders (total) VALUES (1)")
    _lose_store(run)
    run.change(source={"start": "now"})
    run.cdc("capture", "shop", "--until-current")


def _lose_table(run: PageRun) -> None:
    run.end_background()
    shutil.rmtree(run.folder / "lake" / "shop" / "orders")


def _damage(run: PageRun) -> None:
    run.end_background()
    _finish_segment(run)
    segment = run.folder / "data" / "shop" / "store" / "segments" / _newest_segment(run)
    content = bytearray(segment.read_bytes())
    content[-40] ^= 1
    segment.write_bytes(content)


def _serve(run: PageRun) -> None:
    made = make_certificates(run.folder / "conf" / "ca")
    for file, name in ((made.certificate, "server.pem"), (made.key, "server.key"), (made.ca, "ca.pem")):
        shutil.copy(file, run.folder / "conf" / name)
    shutil.copy(made.ca, run.folder / "ca.pem")
    (run.folder / "conf" / "server.key").chmod(0o600)
    run.change(
        server={
            "http": free_port_of(run), "certificate": "server.pem", "key": "server.key",
            "tokens": {"apply": {"file": "apply.token"}},
        }
    )  # fmt: skip


def _be_a_worker(run: PageRun) -> None:
    """Makes the folder of another machine."""
    worker = run.folder / "worker" / "conf"
    worker.mkdir(parents=True)
    for name in ("apply.token", "ca.pem"):
        shutil.copy(run.folder / "conf" / name, worker)
    document = yaml.safe_load(run.file.read_text())
    del document["meta"], document["server"]
    document["store"] = {
        "kind": "server", "url": f"https://localhost:{free_port_of(run)}", "token_file": "apply.token", "ca_file": "ca.pem",
    }  # fmt: skip
    document["apply"]["target"] = str(run.folder / "lake")
    replace(worker / "shop.yaml", document)


def _follow(run: PageRun) -> None:
    _capture(run)
    run.keep_changing(
        "INSERT INTO orders (status, total) VALUES ('new', 10)",
        "UPDATE orders SET status = 'paid' ORDER BY id DESC LIMIT 1",
    )


# --- words of pages that are others here


def _init(run: PageRun) -> Mapping[str, str]:
    flavor = "mysql" if run.server.kind.name.startswith("mysql") else "mariadb"
    return {"mysql://cdc@db.example:3306": f"{flavor}://{USER}@{HOST}:{run.server.port}"}


def _range(run: PageRun) -> Mapping[str, str]:
    return {
        "171798691844": str(run.facts["first_seq"]),
        "171798699120": str(run.facts["last_seq"]),
        "171798999999": str(run.facts["last_seq"]),
        "/tmp/march": str(run.folder / "march"),
        "2026-11-28T22:00:00Z": run.facts["first_time"],
        "2026-11-29T06:00:00Z": run.facts["last_time"],
        "2026-11-21T10:00:00Z": run.facts["first_time"],
        "3e11fa47-…:1-5000": run.facts["first_gtid"],
        "3e11fa47-…:1-5120": run.facts["last_gtid"],
    }


def _segment(run: PageRun) -> Mapping[str, str]:
    return {
        "000-0000012-00000000004.binlog": _newest_segment(run),
        "/tmp/plain.binlog": str(run.folder / "plain.binlog"),
    }


def _token(run: PageRun) -> Mapping[str, str]:
    printed = "".join(file.read_text() for file in (run.folder / "shell").glob("*.out"))
    match = re.search(r"^token +(\w+)", printed, re.MULTILINE)
    return {"TOKEN": match[1]} if match else {}


PAGES: Mapping[str, Page] = {
    "README.md": Page(words=_tutorial, is_filled=False, starts_in_checkout=True),
    "CONTRIBUTING.md": Page({"make": _MADE, ". .venv": _MADE, "pre-commit": _MADE}),
    "conf/README.md": Page(words=_init, is_filled=False),
    "docs/index.md": Page({"make": _WHOLE}),
    "docs/tutorial.md": Page(
        {
            "make install": _MADE,
            ". .venv": _MADE,
            "cdc verify": Step(prints="proved"),
            'python -c "from deltalake import DeltaTable; print(DeltaTable(\'before': Step(prints="Grace"),
        },
        words=_tutorial,
        is_filled=False,
        starts_in_checkout=True,
    ),
    "docs/how-to/adopt.md": Page(
        {
            "cdc capture": Step(is_ready=_is_capturing, stays=True),
            "cdc adopt": Step(unrun="needs a table of another tool", shown_by="tests/integration/test_adopt.py"),
        }
    ),
    "docs/how-to/airflow.md": Page(setup=_airflow),
    "docs/how-to/alarms.md": Page({"#!": Step(unrun="needs a chat; a test reads its syntax")}, setup=_alarms),
    "docs/how-to/archive.md": Page(
        {
            "pip": _PIP,
            "cdc archive restore shop": Step(before=_lose_store),
            "cdc capture shop": Step(is_ready=_is_capturing),
            "cdc archive restore shop --drill": Step(before=_lose_meta_too),
        },
        setup=_archive,
        words=_range,
    ),
    "docs/how-to/attest.md": Page({"cdc attest": Step(prints="as signed")}, setup=_signing),
    "docs/how-to/backfill.md": Page(setup=_airflow_with_dags),
    "docs/how-to/batches.md": Page(words=_range),
    "docs/how-to/canal-clients.md": Page({"cdc server": Step(until="Canal's clients")}, setup=_canal),
    "docs/how-to/clusters.md": Page({"kubectl": _KUBERNETES}, is_filled=False),
    "docs/how-to/decode.md": Page(setup=_binlog_file),
    "docs/how-to/diff.md": Page({"cdc diff": Step(prints="inserted")}, words=_range),
    "docs/how-to/encryption.md": Page(
        {"cdc decode --decrypt": Step(before=_encrypt)}, words=_segment
    ),
    "docs/how-to/failover.md": Page({"cdc": _FAILOVER}),
    "docs/how-to/groups.md": Page({"cdc": _GROUP}),
    "docs/how-to/install.md": Page(
        {"pip": _PIP, "podman": Step(unrun="needs a builder of images", shown_by="tests/unit/test_images.py")}
    ),
    "docs/how-to/instances.md": Page(
        {"cdc server": Step(until="Canal's clients", stays=True), "cdc instance list": Step(prints="billing")},
        setup=_instances,
    ),
    "docs/how-to/kafka.md": Page({"cdc": _KAFKA}),
    "docs/how-to/layout.md": Page(),
    "docs/how-to/memory-store.md": Page(
        {"cdc server": Step(until="Canal's clients")}, setup=_memory, is_filled=False
    ),
    "docs/how-to/metrics.md": Page({"cdc capture": Step(is_ready=_is_capturing)}),
    "docs/how-to/move.md": Page(
        {
            "cdc move shop /mnt/large/shop/store --meta": Step(before=_move_back),
            "cdc move shop --through": Step(unrun="needs another machine", shown_by="tests/slow/lifecycle/test_move.py"),
        },
        words=lambda run: {"/mnt/large": str(run.folder / "large")},
    ),
    "docs/how-to/object-stores.md": Page(
        {"pip": _PIP, "cdc check": Step(unrun="needs S3", shown_by="tests/integration/test_object_store.py")}
    ),
    "docs/how-to/plan.md": Page(
        {
            "cdc plan shop migration.sql --server source": Step(code=3, prints="line 3: executed, ALGORITHM="),
            "cdc plan": Step(code=3, prints="rewrite"),
        },
        setup=_plan,
    ),
    "docs/how-to/prepare-source.md": Page(),
    "docs/how-to/remask.md": Page(setup=_verify),
    "docs/how-to/remove.md": Page(),
    "docs/how-to/restoring.md": Page(
        {
            "cdc batch accept-gap shop": Step(before=_gap),
            "cdc batch accept-gap shop --table": Step(before=_lose_table),
            "cdc snapshot": Step(before=_capture),
            "cdc inspect": Step(before=_damage),
        },
        words=_segment,
    ),
    "docs/how-to/retention.md": Page(words=_token),
    "docs/how-to/run-capture.md": Page(
        {"useradd": _ROOT, "install": _ROOT, "systemctl": _ROOT, "kubectl": _KUBERNETES, "helm": _KUBERNETES},
        words=lambda run: {"/etc/systemd/system": str(run.folder / "units")},
    ),
    "docs/how-to/runs.md": Page({"cdc history": Step(prints="batch")}),
    "docs/how-to/schema-changes.md": Page(setup=_capture),
    "docs/how-to/server.md": Page(
        {
            "cdc server": Step(until="Serving", stays=True),
            "curl": Step(prints="shop"),
            "cdc status": Step(before=_be_a_worker, first="cd worker"),
        },
        setup=_serve,
        words=lambda run: {"store.example:8040": f"localhost:{free_port_of(run)}"},
    ),
    "docs/how-to/shards.md": Page({"cdc": _SHARDS}),
    "docs/how-to/snapshots.md": Page({"cdc capture": Step(is_ready=_is_capturing, stays=True)}),
    "docs/how-to/spark.md": Page(
        {
            "CDC_CONF": Step(unrun="needs a cluster", shown_by="tests/integration/test_submitted_jobs.py"),
            "cdc spark": _CONNECT,
            "pip": _PIP,
            "spark-submit": Step(unrun="stays on another machine", shown_by="tests/integration/test_ways_into_spark.py"),
        }
    ),
    "docs/how-to/tail.md": Page(
        {
            "cdc tail shop --table": Step(until=r"update  shop.orders id=\d+  status: new → paid"),
            "cdc tail shop --json": Step(until=r"^}\n(?s:.)*^}\n"),
        },
        setup=_follow,
    ),
    "docs/how-to/tasks.md": Page(
        {"cdc init": Step(before=_forget)},
        setup=_airflow_with_dags,
        words=lambda run: {**_init(run), "2026-11-24T00:00:00Z": run.facts["last_time"]},
    ),
    "docs/how-to/verify.md": Page(setup=_verify),
}  # fmt: skip
"""The pages with commands."""


# --- Python


@dataclass(frozen=True)
class Python:
    """The preconditions of a Python block of a page."""

    prelude: str = ""
    """The preconditions of the page."""
    words: tuple[tuple[str, str], ...] = ()
    unrun: str = ""
    shown_by: str = ""


_DAG = Python(unrun="is a DAG file", shown_by="tests/dags/test_page_blocks.py")
_SPARK = """
import os
from cdc.config import load
from cdc.lake.runtime import session
spark = session.acquire(load("conf/shop.yaml").spark).spark
"""
_CANAL = Python(unrun="is a client of another library", shown_by="tests/servers/canal/test_conformance.py")
PYTHON: Mapping[tuple[str, int], Python] = {
    ("docs/how-to/airflow.md", 0): _DAG,
    ("docs/how-to/airflow.md", 1): _DAG,
    ("docs/how-to/airflow.md", 2): _DAG,
    ("docs/how-to/alarms.md", 0): _DAG,
    ("docs/how-to/as-of.md", 0): Python(
        _SPARK,
        (("2026-03-01T09:00:00Z", "last_time"), ("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5000", "last_gtid"),
         ("before_shop_lines", "before_shop_items")),
    ),
    ("docs/how-to/as-of.md", 1): Python(
        f"{_SPARK}import cdc\n", (("171798691844", "first_seq"), ("171798699120", "last_seq")),
    ),
    ("docs/how-to/asset-events.md", 0): _DAG,
    ("docs/how-to/asset-events.md", 1): Python(unrun="is a part of a task", shown_by="tests/dags/test_changes.py"),
    ("docs/how-to/canal-clients.md", 0): _CANAL,
    ("docs/how-to/capacity.md", 0): Python(unrun="is a part of a program", shown_by="tests/slow/event_store/channel"),
    ("docs/how-to/clusters.md", 0): _DAG,
    ("docs/how-to/columns.md", 0): Python(),
    ("docs/how-to/decode.md", 0): Python(),
    ("docs/how-to/decode.md", 1): Python(unrun="needs Polars and DuckDB", shown_by="tests/unit/cli/test_decode.py"),
    ("docs/how-to/install.md", 0): _DAG,
    ("docs/how-to/instances.md", 0): Python(),
    ("docs/how-to/intervals.md", 0): _DAG,
    ("docs/how-to/kafka.md", 0): Python(unrun="needs three brokers", shown_by="tests/servers/canal/mq/test_push.py"),
    ("docs/how-to/python-clients.md", 0): Python(unrun="runs until it is stopped", shown_by="tests/unit/connector/test_connectors.py"),
    ("docs/how-to/runs.md", 0): Python(),
    ("docs/how-to/stream.md", 0): Python(unrun="runs until it is stopped", shown_by="tests/servers/streaming"),
    ("docs/how-to/stream.md", 1): Python(unrun="runs until it is stopped", shown_by="tests/servers/streaming"),
}  # fmt: skip
"""The Python blocks of the pages, by their numbers."""
