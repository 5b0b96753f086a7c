"""Damaged, foreign and unwritable files, and a full disk: one clear message, the right exit code, no data loss."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cdc.store.formats.layout import index_path
from cdc.testing.servers import Server
from tests.support.servers_bad_input import Site, bundle, refused, rows, succeeded

CAPTURE = ("capture", "shop", "--until-current")
DB = "files"
TABLE = f"{DB}.t"
ROWS = 400
MORE = "batch: {max_wait_s: 0}\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mariadb10") as server:
        server.execute(f"CREATE DATABASE {DB}", f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, v VARCHAR(1000))")
        server.execute(*[f"INSERT INTO {TABLE} VALUES ({n}, REPEAT('v', 500))" for n in range(ROWS)])
        yield server


@pytest.fixture(scope="module")
def template(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A captured store of several segments, with a meta and an outstanding batch."""
    site = Site(tmp_path_factory.mktemp("template"))
    site.configure(server.url, DB, more=MORE)
    captured, got = site.bundle(CAPTURE, ["batch", "get", "shop", "--json"])
    succeeded(captured)
    succeeded(got)
    assert len(site.segments) >= 4
    return site


@pytest.fixture
def site(template: Site, server: Server, tmp_path: Path) -> Site:
    """Returns a copy of it with a server id of its own. The outstanding batch's manifest names the template's files."""
    shutil.copytree(template.folder, tmp_path / "site")
    site = Site(tmp_path / "site")
    site.configure(server.url, DB, more=MORE)
    return site


def decode(site: Site) -> tuple[str, ...]:
    return ("decode", str(site.store), "--table", TABLE, "--column", "id")


def flip(path: Path, at: int) -> None:
    """Flips one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(bytes(data))


def middle(path: Path) -> int:
    return path.stat().st_size // 2


@contextmanager
def changed(path: Path, change: Callable[[Path], None]) -> Iterator[None]:
    """Changes a file inside the block, checks that nothing else changes it, and restores it."""
    before = path.read_bytes()
    change(path)
    after = path.read_bytes() if path.exists() else None
    yield
    assert (path.read_bytes() if path.exists() else None) == after
    path.write_bytes(before)


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("which", ["first", "last"])
def test_a_damaged_segment(site: Site, which: str) -> None:
    """Every reader of the damaged byte names its position and changes nothing; with the old byte everything is readable."""
    segment = site.segments[0 if which == "first" else -1]
    with changed(segment, lambda path: flip(path, middle(path))):
        before = site.files()
        captured, looked, decoded = site.bundle(CAPTURE, ["inspect", str(segment)], decode(site))
        succeeded(captured)  # the checkpoint vouches for all of them, and capture reads nothing again
        refused(looked, 2, segment.name, "checksum")
        refused(decoded, 2, segment.name, "checksum", "Restore the file from a copy")
        assert {k: v for k, v in site.files().items() if "segments" in k} == {
            k: v for k, v in before.items() if "segments" in k
        }
    recaptured, decoded = site.bundle(CAPTURE, decode(site))
    succeeded(recaptured)
    assert rows(decoded) == list(range(ROWS))


def test_a_damaged_end_is_not_appended_to(site: Site) -> None:
    """Without a checkpoint for the end of the store, capture verifies it; the remedy of its message helps."""
    (site.store / "checkpoint").unlink()
    segment = site.segments[-1]
    with changed(segment, lambda path: flip(path, middle(path))):
        before = site.files()
        refused(site.bundle(CAPTURE)[0], 2, segment.name, "acknowledged transactions", "Move this segment")
        assert {k: v for k, v in site.files().items() if "segments" in k} == {
            k: v for k, v in before.items() if "segments" in k
        }
    flip(segment, middle(segment))
    segment.rename(site.folder / segment.name)
    index_path(segment).unlink()
    recaptured, decoded = site.bundle(CAPTURE, decode(site))
    succeeded(recaptured)
    assert rows(decoded) == list(range(ROWS))


@pytest.mark.long
def test_a_damaged_index(site: Site) -> None:
    """Damaged header or entry, a lost entry, a truncated one: readers report it; capture repairs it from the segment."""
    entry = 128
    damages: list[tuple[str, Callable[[Path], None], str]] = [
        ("header", lambda path: flip(path, 5), "header is damaged"),
        ("seq", lambda path: flip(path, entry * 9 + 6), "fails its checksum"),
        ("cut", lambda path: os.truncate(path, entry * 20 + 13), "lacks transactions"),
        ("lost", lambda path: path.unlink(), "lacks transactions"),
    ]
    index = index_path(site.segments[1])
    get = ["batch", "get", "shop", "--subscriber", "reader", "--owner", "test", "--json"]
    first = json.loads(succeeded(site.bundle(get)[0]).out)  # the CREATE TABLE, alone
    ack = ["batch", "ack", "shop", "--subscriber", "reader", "--batch", str(first["batch"]), "--token", first["token"]]
    succeeded(site.bundle(ack)[0])
    for name, damage, words in damages:
        with changed(index, damage):
            got, looked = site.bundle(get, ["inspect", str(index)])
            refused(got, 2, index.name, words, "apture")
            if name in ("header", "seq"):
                refused(looked, 2, index.name, words)
    index.unlink()
    mended, got, decoded = site.bundle(CAPTURE, get, decode(site))
    succeeded(mended)
    assert json.loads(succeeded(got).out)["transactions"] == ROWS
    assert rows(decoded) == list(range(ROWS))


def test_damaged_small_files(site: Site) -> None:
    """Each error names the file and leaves it unchanged; after a repair everything continues."""
    schemas = next((site.store / "schemas").glob("*.json"))
    status, get = ["status", "shop"], ["batch", "get", "shop", "--subscriber", "reader", "--owner", "test"]
    cut: Callable[[Path], None] = lambda path: os.truncate(path, middle(path))  # noqa: E731
    gone: Callable[[Path], None] = lambda path: path.unlink()  # noqa: E731
    meta = site.meta / "meta.json"
    cases: list[tuple[Path, Callable[[Path], None], list[str] | tuple[str, ...], tuple[str, ...]]] = [
        (site.store / "store.json", cut, CAPTURE, ("store.json", "not valid JSON", "remove this file")),
        (site.store / "store.json", cut, status, ("store.json", "not valid JSON", "remove this file")),
        (site.store / "tables.json", cut, CAPTURE, ("tables.json", "not valid JSON", "remove it and all .index files")),
        (site.store / "tables.json", cut, get, ("tables.json", "not valid JSON", "remove it and all .index files")),
        (
            site.store / "tables.json",
            gone,
            CAPTURE,
            ("tables.json", "names 0 tables", "remove it and all .index files"),
        ),
        (site.store / "tables.json", gone, get, ("tables.json", "names 0 tables", "remove it and all .index files")),
        (site.store / "capture.json", cut, status, ("capture.json", "not valid JSON", "Remove it")),
        (schemas, cut, CAPTURE, ("schemas", schemas.name, "Restore it from a copy")),
        (meta, cut, CAPTURE, ("meta.json", "not whole", "Nothing was changed")),
        (meta, lambda path: flip(path, middle(path)), get, ("meta.json", "Nothing was changed")),
        (meta, cut, ["inspect", str(meta)], ("meta.json", "not whole")),
    ]
    for path, change, command, words in cases:
        with changed(path, change):
            [done] = site.bundle(command)
            refused(done, 2, *words)
    (site.store / "tables.json").unlink()
    for segment in site.segments:
        index_path(segment).unlink()
    mended, got, decoded = site.bundle(CAPTURE, get, decode(site))
    succeeded(mended)
    succeeded(got)
    assert rows(decoded) == list(range(ROWS))


def test_a_damaged_manifest(template: Site, tmp_path: Path) -> None:
    """The batch is rolled back with a warning, and its transactions come in a new batch."""
    manifest = next((template.meta / "manifests" / "apply").glob("*.json"))
    copy = tmp_path / "manifest.json"
    shutil.copyfile(manifest, copy)
    os.truncate(copy, middle(copy))
    kept = manifest.read_bytes()
    os.truncate(manifest, middle(manifest))
    looked, got = template.bundle(["inspect", str(copy)], ["batch", "get", "shop", "--json"])
    refused(looked, 2, "manifest.json", "not whole")
    before, after = json.loads(kept), json.loads(succeeded(got).out)
    assert "batch rolled back: its manifest is lost" in got.err
    assert after["batch"] == before["batch"] + 1
    assert [after[k] for k in ("first_seq", "last_seq", "ranges")] == [
        before[k] for k in ("first_seq", "last_seq", "ranges")
    ]


# ---------------------------------------------------------------- folders that cannot be used


def test_folders_that_cannot_be_used(server: Server, tmp_path: Path) -> None:
    """A file in place of a folder, and a folder that cannot be written."""
    (tmp_path / "file").write_text("not ours")
    cases = []
    for name, keys in {
        "store": ("./data/store", str(tmp_path / "file")),
        "below": ("./data/store", str(tmp_path / "file" / "store")),
        "meta": ("./data/meta", str(tmp_path / "file")),
        "proc": ("./data/store", "/proc/towpath/store"),
    }.items():
        site = Site(tmp_path / name)
        file = site.configure(server.url, DB)
        file.write_text(file.read_text().replace(*keys))
        cases.append(site)
    done = bundle([(site, CAPTURE) for site in cases] + [(site, ["status", "shop"]) for site in cases[:3]])
    for outcome in done[:3]:
        refused(outcome, 2, str(tmp_path / "file"), "cannot be used", "Make the folder writable", "configuration")
    refused(done[3], 2, "/proc/towpath", "no folder can be made there", "configuration")
    for outcome in done[4:]:
        if outcome.code:
            refused(outcome, outcome.code, str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "not ours"
    site = cases[0]
    site.configure(server.url, DB)
    succeeded(site.run(*CAPTURE))


def test_a_folder_of_another_user(server: Server, template: Site, tmp_path: Path) -> None:
    """As root, the command runs without the right to write into folders of other users; otherwise the folder is made
    read-only."""
    site = Site(tmp_path / "site")
    site.configure(server.url, DB)
    prefix: list[str] = []
    if os.geteuid() == 0:
        os.chown(site.folder, 65534, 65534)
        prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    site.folder.chmod(0o555)
    done = site.run(*CAPTURE, prefix=prefix)
    site.folder.chmod(0o755)
    refused(done, 2, str(site.folder), "Permission denied", "Make the folder writable")


# ---------------------------------------------------------------- a full disk


def _full_ways() -> list[str]:
    """A file system of its own if it can be mounted, else a limit on the size of files."""
    if os.geteuid() != 0:
        return ["limit"]
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder], capture_output=True, check=False
        )
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)
    return ["limit", "tmpfs"] if mounted.returncode == 0 else ["limit"]


@pytest.mark.long
@pytest.mark.parametrize("way", _full_ways())
def test_a_full_disk(server: Server, tmp_path: Path, way: str) -> None:
    """Capture ends with one message; with space it continues, and every row is there once."""
    site = Site(tmp_path)
    site.configure(server.url, DB)
    with ExitStack() as stack:
        prefix: list[str] = []
        if way == "limit":
            prefix = ["prlimit", "--fsize=30000"]
        else:
            site.store.mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=104k", "none", str(site.store)], check=True)
            stack.callback(subprocess.run, ["umount", str(site.store)], check=True)
        done = site.run(*CAPTURE, prefix=prefix)
        reason = "File too large" if way == "limit" else "No space left on device"
        refused(done, 1, str(site.store), reason, "Nothing that was acknowledged is lost")
        if way == "tmpfs":
            subprocess.run(["mount", "-o", "remount,size=10m", str(site.store)], check=True)
        recaptured, decoded = site.bundle(CAPTURE, decode(site))
        succeeded(recaptured)
        assert rows(decoded) == list(range(ROWS))


# ---------------------------------------------------------------- the target


@pytest.mark.long
@pytest.mark.timeout(600)
def test_targets_and_segments_that_cannot_be_merged(template: Site, server: Server, tmp_path: Path) -> None:
    """A folder with other files, a file in place of the table, a damaged segment: the batch is rolled back, nothing
    of it is lost, and after the mend it is applied."""
    sites = {name: Site(tmp_path / name) for name in ("strange", "file", "damaged")}
    for site in sites.values():
        site.configure(server.url, DB, more=MORE)
        shutil.copytree(template.store, site.store)
    place = sites["strange"].folder / "lake" / DB / "t"
    place.mkdir(parents=True)
    (place / "report.csv").write_text("1,2\n")
    (sites["file"].folder / "lake").mkdir()
    (sites["file"].folder / "lake" / DB).write_text("a file")
    segment = sites["damaged"].segments[1]
    whole = segment.read_bytes()
    capture = [(site, CAPTURE) for site in sites.values()]
    apply = ("apply", "shop", "--until-empty", "--json")
    captured = bundle(capture)
    for outcome in captured:
        succeeded(outcome)
    flip(segment, middle(segment))
    before = {name: site.files() for name, site in sites.items()}
    strange, file, damaged = bundle([(site, apply) for site in sites.values()], timeout_s=280)
    refused(strange, 2, TABLE, str(place), "not a Delta table", "Move them away")
    refused(file, 2, TABLE, str(sites["file"].folder / "lake" / DB))
    refused(damaged, 2, segment.name, "checksum", "Restore the file from a copy")
    for name, site in sites.items():
        kept = {k: v for k, v in site.files().items() if "/store/" in k or k.startswith("lake")}
        assert {k: v for k, v in before[name].items() if "/store/" in k or k.startswith("lake")}.items() <= kept.items()
    shutil.rmtree(place)
    (sites["file"].folder / "lake" / DB).unlink()
    segment.write_bytes(whole)
    for done in bundle([(site, apply) for site in sites.values()], timeout_s=280):
        merged = json.loads(succeeded(done).out)["batches"]
        assert sum(table["inserted"] for batch in merged for table in batch["tables"]) == ROWS
