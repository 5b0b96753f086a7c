"""Every key of the configuration is read by something: one that nothing reads would promise what does not happen."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
from pydantic import BaseModel

from cdc.config import ApplyConfig, ApplyOverrides, DestinationConfig
from cdc.config.secret_source import Secret

ROOT = Path(__file__).resolve().parents[3]
VALIDATORS = ("field_validator", "model_validator")


class Read(NamedTuple):
    """An attribute that is read, as mypy sees it."""

    what: str
    """Module, class and attribute."""
    file: Path
    line: int
    through: str
    """``config.apply`` in ``self.config.apply.mode``; ``-`` where the object has another form."""


def reads(package: str, files: Sequence[Path], folder: Path) -> list[Read]:
    """Every read of an attribute or method of the package's classes in the files."""
    notes, settings = folder / "reads.tsv", folder / "mypy.ini"
    notes.unlink(missing_ok=True)
    plugin = Path(__file__).with_name("config_keys_plugin.py")
    settings.write_text(
        f"[mypy]\nplugins = pydantic.mypy, {plugin}\nfollow_imports = skip\nignore_missing_imports = True\n"
        "check_untyped_defs = True\nexplicit_package_bases = True\nnamespace_packages = True\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", str(folder / "cache")]
    done = subprocess.run(
        [*command, *map(str, files)],
        cwd=folder if package == "sample" else ROOT,
        env=os.environ | {"TOWPATH_READS": str(notes), "TOWPATH_READS_OF": package},
        capture_output=True,
        text=True,
    )
    # Code 1: mypy finds faults, since it sees only some of the files. Anything else is no answer.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    base = folder if package == "sample" else ROOT
    lines = [line.split("\t") for line in notes.read_text(encoding="utf-8").splitlines()]
    return [Read(what, base / file, int(line), through) for what, file, line, through in lines]


def keys(model: type[BaseModel]) -> Iterator[tuple[type[BaseModel], str]]:
    """Every key of the sections that leaves a choice, the keys of sub-sections included."""
    for name, field in model.model_fields.items():
        if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1:
            continue  # it takes one value only
        yield model, name
        for section in sections(field.annotation):
            yield from keys(section)


def sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in a type, however deep: ``dict[str, Annotated[Section, …]] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from sections(part)


def unread(model: type[BaseModel], config_reads: Sequence[Read], package: Path) -> set[str]:
    """The keys that nothing outside ``package`` reads, neither directly nor through a property or method of a section.

    Reads by validators and other functions of the package do not count, since checking a key gives it no effect. The
    module ``secrets`` counts as outside: it is where the keys that name a secret have their effect, which are read
    through the attribute that declares the secret.
    """
    inside = {read for read in config_reads if read.file.is_relative_to(package) and read.file.name != "secrets.py"}
    reached = {read.what for read in config_reads if read not in inside}
    members = _members(package)
    while True:
        through = {r.what for r in inside if members.get((r.file, r.line)) in reached}
        if through <= reached:
            break
        reached |= through
    reached |= {
        f"{_name(section)}.{key}"
        for section in {section for section, _ in keys(model)}
        for attribute, secret in vars(section).items()
        if isinstance(secret, Secret) and f"{_name(section)}.{attribute}" in reached
        for key in secret.keys(section)
    }
    return {f"{_name(section)}.{key}" for section, key in keys(model)} - reached


def _name(section: type[BaseModel]) -> str:
    return f"{section.__module__}.{section.__qualname__}"


def _members(package: Path) -> dict[tuple[Path, int], str]:
    """Returns by line the method or property (by its full name) of a section that the line is in; validators are left
    out."""
    members: dict[tuple[Path, int], str] = {}
    for file in package.rglob("*.py"):
        module = ".".join(file.relative_to(package.parent).with_suffix("").parts)
        module = module if package.name == "sample" else f"cdc.{module}"
        for section in ast.parse(file.read_text(encoding="utf-8")).body:
            if not isinstance(section, ast.ClassDef):
                continue
            for member in section.body:
                if not isinstance(member, ast.FunctionDef) or any(
                    word in ast.unparse(decorator) for decorator in member.decorator_list for word in VALIDATORS
                ):
                    continue
                for line in range(member.lineno, (member.end_lineno or member.lineno) + 1):
                    members[file, line] = f"{module}.{section.name}.{member.name}"
    return members


@pytest.fixture(scope="module")
def config_reads(tmp_path_factory: pytest.TempPathFactory) -> list[Read]:
    """The reads of the whole configuration. Files that do not mention one are left out, which saves half a minute."""
    files = [
        file.relative_to(ROOT)
        for file in sorted((ROOT / "cdc").rglob("*.py"))
        if "testing" not in file.parts
        and any(word in file.read_text(encoding="utf-8") for word in ("config", "Config", ".apply."))
    ]
    return reads("cdc.config", files, tmp_path_factory.mktemp("keys"))


@pytest.mark.long
def test_every_key_is_read(config_reads: list[Read]) -> None:
    """The keys of overrides are left out here: they become those of ``apply``."""
    # The loader gives this section to the Lake, of which the keys are read.
    missing = unread(DestinationConfig, config_reads, ROOT / "cdc" / "config") - {
        "cdc.config.destination.DestinationConfig.s3"
    }
    assert {key for key in missing if ".ApplyOverrides." not in key} == set()


def test_every_override_is_read_for_its_table(config_reads: list[Read]) -> None:
    """A key of an override counts only where ``table_apply(table)`` is asked, not ``config.apply``."""
    of_apply = f"{ApplyConfig.__module__}.ApplyConfig."
    outside = [read for read in config_reads if not read.file.is_relative_to(ROOT / "cdc" / "config")]
    by_table = {read.what.removeprefix(of_apply) for read in outside if not read.through.endswith("config.apply")}
    assert set(ApplyOverrides.model_fields) - by_table == {"members"}  # which ``apply`` does not have


SAMPLE = """
from pydantic import BaseModel, field_validator

class Inner(BaseModel):
    size: int = 1
    width: int = 1
    checked: int = 1

    @property
    def area(self) -> int:
        return self.size * self.width

    @field_validator("checked")
    @classmethod
    def _check(cls, value: int) -> int:
        return value

    def forgotten(self) -> int:
        return self.checked

class Outer(BaseModel):
    inner: Inner = Inner()
    many: dict[str, Inner] | None = None
    mode: str = "a"
    dummy: int = 0
"""
READER = """
from sample.config import Outer

class Other:
    dummy = mode = checked = 0

def read(outer: Outer, other: Other) -> int:
    return outer.inner.area + other.dummy + other.mode + other.checked + len(outer.many or {})
"""


def test_a_key_that_nothing_reads_is_found(tmp_path: Path) -> None:
    """Not hidden by attributes of the same name elsewhere, nor by what only the configuration itself reads."""
    package = tmp_path / "sample"
    package.mkdir()
    (package / "config.py").write_text(SAMPLE)
    (tmp_path / "reader.py").write_text(READER)
    spec = importlib.util.spec_from_file_location("sample.config", package / "config.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seen = reads("sample", [Path("sample/config.py"), Path("reader.py")], tmp_path)
    assert unread(module.Outer, seen, package) == {
        "sample.config.Inner.checked",
        "sample.config.Outer.dummy",
        "sample.config.Outer.mode",
    }
