"""The cache of jars: a jar that has changed since its download is not used. The jar of Towpath's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.base.errors import DamagedError
from cdc.lake.runtime import jars

CONTENT = {"org.a_one-1.jar": b"one" * 1000, "org.b_two-2.jar": b"two" * 1000}


@pytest.fixture
def fetches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replaces Ivy: copies missing jars from its cache, which it fills if necessary."""
    done: list[Path] = []

    def resolve(packages: jars.Packages) -> None:
        folder = packages.folder
        done.append(folder)
        for name, content in CONTENT.items():
            org, _, file = name.partition("_")
            kept = folder / "cache" / org / file.partition("-")[0] / "jars" / file
            for jar in (kept, folder / "jars" / name):
                jar.parent.mkdir(parents=True, exist_ok=True)
                if not jar.exists():
                    jar.write_bytes(content if jar is kept else kept.read_bytes())

    monkeypatch.setenv("TOWPATH_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "_resolve", resolve)
    return done


def test_jars_are_fetched_once_and_verified_each_time(fetches: list[Path]) -> None:
    delta_jars = jars.delta_jars()
    assert [jar.name for jar in delta_jars] == sorted(CONTENT)
    assert jars.delta_jars() == delta_jars
    assert len(fetches) == 1


@pytest.mark.parametrize("fault", ["changed", "truncated", "missing"])
def test_a_jar_that_is_not_what_was_fetched_is_fetched_anew(fetches: list[Path], fault: str) -> None:
    first_jar, second_jar = jars.delta_jars()
    ivys = next((fetches[0] / "cache").rglob("one-1.jar"))
    for jar in (first_jar, ivys):  # what Ivy kept is the same file, or a copy of it
        if fault == "missing":
            jar.unlink()
        else:
            jar.write_bytes(b"evil" if fault == "changed" else CONTENT[first_jar.name][:-7])
    before = second_jar.stat()
    assert [jar.read_bytes() for jar in jars.delta_jars()] == list(CONTENT.values())
    assert len(fetches) == 2
    assert second_jar.stat().st_mtime_ns == before.st_mtime_ns, "only the damaged one is replaced"


def test_a_jar_that_comes_otherwise_is_refused(fetches: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first_jar, _ = jars.delta_jars()
    first_jar.write_bytes(b"evil")
    monkeypatch.setitem(CONTENT, first_jar.name, b"another")
    with pytest.raises(DamagedError, match=r"had .* at its first download") as raised:
        jars.delta_jars()
    assert raised.value.place == str(first_jar)


def test_a_jar_that_nobody_fetched_is_not_used(fetches: list[Path]) -> None:
    delta_jars = jars.delta_jars()
    delta_jars[0].with_name("extra.jar").write_bytes(b"evil")
    assert jars.delta_jars() == delta_jars


def test_a_cache_of_an_older_version_is_taken_over(fetches: list[Path]) -> None:
    (folder,) = {jar.parent.parent for jar in jars.delta_jars()}
    (folder / "complete").write_text("")
    assert len(jars.delta_jars()) == 2
    assert len(fetches) == 1, "without the network"
    assert len((folder / "complete").read_text().splitlines()) == 2


def test_each_group_of_packages_has_a_folder_of_its_own(fetches: list[Path]) -> None:
    assert {jar.parent for jar in jars.delta_jars()}.isdisjoint(jar.parent for jar in jars.jars_of(jars.s3_packages()))
    assert [folder.name for folder in fetches] == [
        "io.delta_delta-spark_4.2_2.13_4.4.0",
        "org.apache.hadoop_hadoop-aws_3.5.0",
    ]


def test_hadoop_aws_is_of_the_release_of_sparks_hadoop() -> None:
    client = next((jars.spark_home() / "jars").glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
    assert jars.s3_packages().names[0] == f"org.apache.hadoop:hadoop-aws:{client}"
