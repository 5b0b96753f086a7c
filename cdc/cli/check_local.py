"""The part of ``cdc check`` that examines this machine: the folders of store and meta, the target, Java and Spark."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cdc import client, meta
from cdc.base.errors import CdcError
from cdc.base.targets import LOG_FOLDER, local_path, split_table
from cdc.base.units import human_bytes
from cdc.canal.mq import checks
from cdc.client import connect
from cdc.config import DestinationConfig
from cdc.config.lake import Lake
from cdc.config.memory import SHARED_MEMORY, in_memory
from cdc.config.secrets import encryption_keys, push_credentials
from cdc.copies.archive.writer import Archiver
from cdc.disk.encryption import keys
from cdc.disk.object_stores import can_put_if_absent
from cdc.lake.delta.catalog import difference, require_catalog
from cdc.lake.delta.log import read_position
from cdc.lake.pipeline import plan_remask
from cdc.lake.runtime.jars import TRIED, tried_pairs
from cdc.lake.runtime.session import acquire
from cdc.lake.runtime.spark_settings import in_process
from cdc.source.findings import Finding, error, from_error, ok, warning
from cdc.store.formats import layout
from cdc.store.formats.archive_record import read_record

_LOW_DISK_BYTES = 1 << 30
_MIN_JAVA = 17


def examine(config: DestinationConfig) -> list[Finding]:
    """Returns the findings about this machine."""
    if config.store.kind == "memory":
        return [*_memory(config), *_metrics(config)]
    here = config.store.kind == "file"
    where = [*_store(config), *_meta(config), *_archive(config)] if here else _server(config)
    return [
        *where,
        *_target(config),
        *_small_files(config),
        *_policies(config),
        *_spark(config),
        *_catalog(config),
        *_metrics(config),
        *_mq(config),
    ]


def _memory(config: DestinationConfig) -> list[Finding]:
    """Checks that the machine has the memory for a store in memory, and that a meta outside can be used."""
    served, needed = in_memory(config).store, config.store.max_transaction_bytes
    if config.store.batch_mode == "memsize":
        needed += config.store.buffer_size * config.store.buffer_unit_bytes
    if not SHARED_MEMORY.is_dir():
        return [error("store", f"this machine has no shared memory in {SHARED_MEMORY}", "Use store.kind: file.")]
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < needed:
        remedy = (
            "Give the machine (or the container, by --shm-size) more, or make buffer_size or max_transaction_bytes "
            "smaller."
        )
        what = (
            f"the buffer and the largest transaction may need {human_bytes(needed)}, and {human_bytes(free)} are free"
        )
        findings = [warning("store", f"{what} in {SHARED_MEMORY}", remedy)]
    else:
        findings = [ok("store", f"it is in the memory of `cdc server` ({served.run_folder})")]
    if config.meta.kind == "memory":
        what = "it ends with `cdc server`, and clients then begin at source.start, or where they subscribe"
        return [*findings, ok("meta", what)]
    folder = _folder("meta", config.meta.path, "meta.path")
    return [*findings, folder, *_removable("meta", config.meta.path, "meta.path")]


def _server(config: DestinationConfig) -> list[Finding]:
    """The server that has store and meta answers, and knows the token."""
    try:
        subscriber = connect(config).call("whoami", once=True)
    except CdcError as trouble:
        return [from_error("server", trouble)]
    return [ok("server", f"{config.store.url} serves the store to subscriber {subscriber}")]


def _store(config: DestinationConfig) -> list[Finding]:
    path = config.store.path
    folder = _folder("store", path, "store.path")
    fleeting = _removable("store", path, "store.path")
    if folder.level == "ok":
        try:
            layout.check(path)
        except CdcError as trouble:
            return [from_error("store", trouble)]
        free = shutil.disk_usage(_existing(path)).free
        if free < _LOW_DISK_BYTES:
            remedy = "Make room, or set store.path to another disk."
            return [folder, *fleeting, warning("store", f"only {human_bytes(free)} are free there", remedy)]
    return [folder, *fleeting, *_keys(config)]


def _keys(config: DestinationConfig) -> list[Finding]:
    """Checks that the keys of the store can be read, and by whom."""
    encryption = config.store.encryption
    sources = encryption_keys(encryption)
    if sources is None:
        return []
    try:
        ids = [keys.WrappingKey.of(source()).id for source in sources.all]
    except CdcError as trouble:
        return [from_error("store", trouble)]
    for file in (encryption.key_file, *(key.file for key in encryption.old_keys)):
        if file is not None and file.stat().st_mode & 0o007:
            remedy = f"chmod 600 {file}"
            return [warning("store", f"everybody on this machine may read the key of the store in {file}", remedy)]
    if encryption.key.is_given:
        return [ok("store", f"new files of the store are encrypted with the key {ids[0]}")]
    return [ok("store", "new files of the store are not encrypted; old ones are, and their keys are there")]


def _meta(config: DestinationConfig) -> list[Finding]:
    folder = _folder("meta", config.meta.path, "meta.path")
    if folder.level == "ok":
        try:
            meta.open_meta(config).read()
        except CdcError as trouble:
            return [from_error("meta", trouble)]
    return [folder, *_removable("meta", config.meta.path, "meta.path")]


def _archive(config: DestinationConfig) -> list[Finding]:
    """Checks that the archive can be written, by this store and by no other one. Leaves nothing behind."""
    uri = config.archive_uri
    if uri is None or config.store.standby.role == "standby":  # the master writes it
        return []

    try:
        how = Archiver(config).require_writable()
        record = read_record(config.store.path)
    except CdcError as trouble:
        return [from_error("archive", trouble)]
    if record.uri == uri and record.error:
        return [warning("archive", f"the last try to copy to {uri} failed: {record.error}", "See the log of capture.")]
    if how == "first":
        return [ok("archive", f"{uri} can be written, and is empty")]
    return [ok("archive", f"{uri} can be written, and has {record.segments} segments of this store")]


_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/run")


def _removable(subject: str, path: Path, key: str) -> list[Finding]:
    """Returns a warning if something else than Towpath may remove or replace the folder."""
    real = Path(os.path.realpath(path))
    through = "" if real == path else f" (by a symbolic link: {real})"
    remedy = f"Set {key} to an absolute path of a folder outside, and move what is in the folder there."
    for folder in dict.fromkeys((*path.parents, *real.parents)):
        if os.path.lexists(folder / ".git"):
            what = (
                f"{path} lies inside the git checkout {folder}{through}: a sync that replaces it, or git clean, removes"
            )
            return [warning(subject, f"{what} the {subject}", remedy)]
    for name in dict.fromkeys((tempfile.gettempdir(), *_TEMPORARY)):
        if real.is_relative_to(os.path.realpath(name)):
            what = f"{path} lies in the temporary folder {name}{through}, which the system may empty"
            return [warning(subject, what, remedy)]
    return []


def _target(config: DestinationConfig) -> list[Finding]:
    target = config.apply.target
    parts = urlsplit(target)
    if config.spark.lake is not None:
        return [_bucket(config.spark.lake)]
    if "://" in target and parts.scheme != "file":
        return [
            warning(
                "target",
                f"{target} cannot be checked from here",
                "Make sure that Spark has the jars and the rights for it (spark.conf). The first batch will show it.",
            )
        ]
    folder = local_path(target)
    assert folder is not None  # a path, or a file:// URI
    if config.spark.remote is not None:
        return [
            warning(
                "target",
                f"{folder} is a folder on the machine of the Spark Connect server, and cannot be checked from here",
                "Make sure that the server and this machine see the same folder under this name.",
            )
        ]
    findings = [_folder("target", folder, "apply.target")]
    if findings[0].level == "ok":
        findings += _foreign_folders(config, folder)
    return findings


def _small_files(config: DestinationConfig) -> list[Finding]:
    """Warns of tables that need maintenance."""
    try:
        subscription = client.open_meta(config).read().subscriptions.get("apply")
    except CdcError:  # other findings say why it cannot be read
        return []
    findings = []
    recorded = [] if subscription is None else sorted(subscription.tables, reverse=True)
    tables = sorted({config.table_path(table): table for table in recorded}.values())  # each Delta table once
    with ThreadPoolExecutor(max_workers=8) as pool:
        paths = [config.table_path(table) for table in tables]
        positions = pool.map(lambda path, table: read_position(path, config.name, table), paths, tables)
    for table, position in zip(tables, positions, strict=True):
        if position.small_files:
            findings.append(
                warning(
                    "target",
                    f"{table} has {position.small_files:,} small files, which readers and merges open one by one",
                    f"Run `cdc maintain {config.name} {table}`, and let the DAG maintain_{config.name} run.",
                )
            )
    return findings


def _policies(config: DestinationConfig) -> list[Finding]:
    """Finds tables whose values in the lake have other column policies than the configuration says."""
    if importlib.util.find_spec("pyspark") is None:  # this machine applies nothing
        return []
    try:
        tables = plan_remask(config)
    except CdcError:  # other findings say what cannot be read
        return []
    findings = []
    for table in tables:
        was, now = (", ".join(getattr(c, side) for c in table.columns) for side in ("was", "now"))
        text = (
            f"{table.table} has {', '.join(c.column for c in table.columns)} by the policy {was} in the lake, and the "
        )
        text += f"configuration says {now}: apply refuses its changes"
        remedy = f"Run `cdc remask {config.name} {table.table}`, or set the policy back."
        findings.append(error("columns", text if table.columns else "; ".join(table.why), remedy))
    return findings


def _bucket(lake: Lake) -> Finding:
    """Checks that the bucket can be written, and that it guards commits. Leaves nothing behind."""
    try:
        guarded = can_put_if_absent(lake.target)
    except FileNotFoundError as trouble:
        return error("target", f"{lake.target}: {trouble}", "Make the bucket, or correct apply.target and s3.")
    except CdcError as trouble:
        return error("target", str(trouble), trouble.remedy or "Correct s3: endpoint, region and access key.")
    if not lake.has_conditional_puts:
        text = f"{lake.target} is writable; nothing guards its tables against two drivers that commit at once"
        return warning("target", text, "Set s3.log_store: conditional_put." if guarded else "Keep it at one driver.")
    if guarded:
        return ok("target", f"{lake.target} is writable, and refuses a commit whose name is taken")
    return error(
        "target",
        f"{lake.target} has no conditional puts: two drivers could replace each other's commits",
        "Update the object store; or set s3.log_store: single_driver and see to it that there is only ever one driver, "
        "and no orphan of one.",
    )


def _foreign_folders(config: DestinationConfig, folder: Path) -> list[Finding]:
    """Returns errors for folders that captured tables would be written to, and that hold something else."""
    findings: list[Finding] = []
    for database in sorted(p for p in folder.glob("*") if p.is_dir()):
        for table in sorted(p for p in database.glob("*") if not p.name.startswith(".")):
            names = unquote(database.name), unquote(table.name)
            if not config.tables.includes(*names):
                continue
            holds_something = not table.is_dir() or any(table.iterdir())
            if holds_something and not (table / LOG_FOLDER).is_dir():
                findings.append(
                    error(
                        "target",
                        f"{table} holds something that is not a Delta table",
                        f"Move it away, or choose another apply.target: {'.'.join(names)} is written there.",
                    )
                )
    return findings


def _folder(subject: str, path: Path, key: str) -> Finding:
    """Checks that the folder is writable, or can be created. Leaves nothing behind."""
    existing = _existing(path)
    remedy = f"Make the folder writable for this user, or change {key}."
    if not existing.is_dir():
        return error(subject, f"{existing} is not a folder", f"Move that file away, or change {key}.")
    if not os.access(existing, os.W_OK | os.X_OK):
        return error(subject, f"{existing} is not writable", remedy)
    try:
        # For root, access() says yes on a read-only disk too; only an attempt tells.
        probe = existing / f".towpath-check-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
    except OSError as trouble:
        return error(subject, f"{existing} is not writable: {trouble.strerror}", remedy)
    return ok(subject, f"{path} is writable" if path.is_dir() else f"{path} can be created")


def _existing(path: Path) -> Path:
    """Returns the path itself, or the nearest path above it that exists."""
    return next(p for p in (path, *path.parents) if os.path.lexists(p))


def _spark(config: DestinationConfig) -> list[Finding]:
    findings = [_package("pyspark")]
    if config.spark.remote is not None:
        if importlib.util.find_spec("grpc") is None:
            findings.append(error("spark", "Spark Connect needs the package grpcio", "pip install 'pyspark[connect]'"))
        where = config.spark.remote_address
        findings.append(ok("spark", f"merges run on {where}, which has its own Java and Delta"))
        return findings
    findings.append(_package("delta-spark"))
    findings += _untried_pair()
    findings.append(_java())
    return findings


def _untried_pair() -> list[Finding]:
    """Returns a warning if these releases of Spark and Delta were not tried together."""
    try:
        pair = version("pyspark"), version("delta-spark")
    except PackageNotFoundError:
        return []
    if pair in TRIED:
        return []
    text = f"PySpark {pair[0]} with delta-spark {pair[1]} was not tried"
    return [warning("spark", text, f"Tried: {tried_pairs()}. If a merge fails, install one of these pairs.")]


def _catalog(config: DestinationConfig) -> list[Finding]:
    """Asks the catalog for the names of the tables that are there. Changes nothing."""
    name = config.apply.catalog.name
    if name is None:
        return []
    if config.spark.remote is None and not in_process(config.spark):
        text = f"{name} cannot be asked from here: Spark is submitted to {config.spark.master}"
        return [warning("catalog", text, "The first batch will show whether it answers.")]
    from cdc.lake.delta.tables import target_of  # imports PySpark, which an extra installs

    findings: list[Finding] = []
    try:
        tables = client.open_meta(config).read().subscription("apply").tables
        spark = acquire(config.spark).spark
        require_catalog(spark, config)
        for table in sorted(tables):
            if config.tables.includes(*split_table(table)):
                target = target_of(config, table)
                other = None if target.state() is None else difference(spark, config, target)
                if other is not None:
                    findings.append(warning("catalog", f"table {table}: {other}", "Run `cdc apply`."))
    except CdcError as trouble:
        return [from_error("catalog", trouble)]
    return findings or [ok("catalog", f"{name} answers, and knows all tables that were applied")]


def _metrics(config: DestinationConfig) -> list[Finding]:
    """Returns what is wrong with the metrics, which fail no run: the package, or the Pushgateway's password."""
    metrics = config.metrics
    if metrics.port is None and metrics.push is None:
        return []
    try:
        version("prometheus-client")
        push_credentials(metrics)
    except PackageNotFoundError:
        text = "metrics are configured, and the package prometheus-client is not installed"
        return [error("metrics", text, "pip install 'towpath[metrics]'")]
    except CdcError as trouble:
        return [from_error("metrics", trouble)]
    places = [] if metrics.port is None else [f"served at port {metrics.port}"]
    places += [] if metrics.push is None else [f"pushed to {metrics.push}"]
    return [ok("metrics", " and ".join(places))]


def _mq(config: DestinationConfig) -> list[Finding]:
    """Asks Kafka's brokers whether they can take what `cdc push` sends."""
    if not config.mq.servers:
        return []

    return checks.examine(config)


def _package(name: str) -> Finding:
    try:
        return ok("spark", f"{name} {version(name)}")
    except PackageNotFoundError:
        return error("spark", f"the package {name} is not installed", "pip install 'towpath[spark]'")


def _java() -> Finding:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = "Install Java 17 or 21 (Debian: apt install openjdk-17-jre-headless), and set JAVA_HOME if need be."
    if program is None:
        return error("java", "Java is not installed on this machine", remedy)
    try:
        command = [program, "-version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as trouble:
        return error("java", f"{program} cannot be run: {trouble}", remedy)
    match = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if match is None:
        return error("java", f"{program} does not print its version", remedy)
    if int(match[1]) < _MIN_JAVA:
        return error("java", f"{program} is Java {match[1]}, which is too old for Spark", remedy)
    return ok("java", f"Java {match[1]} ({program})")
