"""The options of a driver for the archive of classes, and the archives that are kept. ``tests/integration`` has the
JVM."""

from __future__ import annotations

import os
import shlex
import time
import zlib
from pathlib import Path

import pytest

from cdc.lake.runtime import class_archive
from cdc.lake.runtime.class_archive import NewArchive, add_archive, digest_of
from cdc.lake.runtime.jars import CLASSES

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOWPATH_CACHE", str(tmp_path / "a cache"))
    return tmp_path / "a cache" / "classes"


def settings(options: str = "-Xss4m") -> dict[str, str]:
    return {OPTIONS: options, "spark.driver.extraClassPath": str(CLASSES)}


def archive_in(folder: Path, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest_of(settings(), class_archive.DRIVER)}-{zlib.crc32(content):08x}.jsa"
    path.write_bytes(content)
    return path


def test_a_driver_writes_the_archive_and_the_next_one_gets_it(folder: Path) -> None:
    first = settings()
    assert add_archive(first) == NewArchive(folder, digest_of(first, class_archive.DRIVER))
    assert "-XX:+RecordDynamicDumpInfo" in first[OPTIONS]
    assert folder.stat().st_mode & 0o777 == 0o700
    beside = settings()
    assert add_archive(beside) is None, "one at a time"
    assert beside == settings()
    path = archive_in(folder, b"classes")
    second = settings()
    assert add_archive(second) is None
    assert f"-XX:SharedArchiveFile={path}" in shlex.split(second[OPTIONS]), "the path has a space"
    assert second[OPTIONS].startswith("-Xss4m ")


def test_a_damaged_archive_is_removed_and_written_anew(folder: Path) -> None:
    path = archive_in(folder, b"classes")
    path.write_bytes(b"class")
    values = settings()
    assert add_archive(values) is not None
    assert not path.exists()
    assert "SharedArchiveFile" not in values[OPTIONS]


@pytest.mark.parametrize(
    "options", ["-Xshare:off", "-XX:SharedArchiveFile=/mine.jsa", "-XX:ArchiveClassesAtExit=/m.jsa"]
)
def test_options_of_the_user_count(folder: Path, options: str) -> None:
    archive_in(folder, b"classes")
    values = settings(options)
    assert add_archive(values) is None
    assert values[OPTIONS] == options


def test_another_release_of_delta_and_a_folder_with_a_colon_do_without(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {OPTIONS: "-Xss4m"}
    assert add_archive(values) is None
    assert values == {OPTIONS: "-Xss4m"}
    monkeypatch.setenv("TOWPATH_CACHE", str(tmp_path / "a:b"))
    values = settings()
    assert add_archive(values) is None
    assert values == settings()


def test_a_cache_that_cannot_be_written_is_no_error(folder: Path) -> None:
    folder.parent.write_text("a file")
    values = settings()
    assert add_archive(values) is None
    assert values == settings()


def test_of_two_archives_the_larger_one_stays(folder: Path) -> None:
    small, large = archive_in(folder, b"classes"), archive_in(folder, b"more classes")
    values = settings()
    assert add_archive(values) is None
    assert str(large) in values[OPTIONS]
    assert not small.exists()


def test_old_archives_and_unfinished_ones_are_removed(folder: Path) -> None:
    folder.mkdir(parents=True)
    ages_s = {
        "old.jsa": 31 * 86400,
        "used.jsa": 86400,
        "killed.77.new": 7200,
        "writing.78.new": 60,
        "x.begun": 99 * 86400,
    }
    for name, age_s in ages_s.items():
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age_s,) * 2)
    assert add_archive(settings()) is not None
    remaining = {file.name for file in folder.iterdir()} & set(ages_s)
    assert remaining == {"used.jsa", "writing.78.new"}


def test_a_driver_that_runs_for_long_keeps_no_other_one_from_writing(folder: Path) -> None:
    assert add_archive(settings()) is not None
    (marker,) = folder.glob("*.begun")
    os.utime(marker, (time.time() - 400,) * 2)
    assert add_archive(settings()) is not None
    assert add_archive(settings()) is None


def test_each_java_and_each_jar_has_an_archive_of_its_own(tmp_path: Path) -> None:
    jar = tmp_path / "delta.jar"
    jar.write_text("1")
    values = {"spark.driver.extraClassPath": f"{jar}:{CLASSES}"}
    before = digest_of(values, "driver")
    assert digest_of(values, "driver") == before != digest_of(values, "server")
    jar.write_text("22")
    assert digest_of(values, "driver") != before
