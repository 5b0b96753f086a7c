"""Redis as the queue of Celery: Debian's, unpacked into the cache of test servers."""

from __future__ import annotations

import subprocess

from cdc.testing.servers.kinds import with_own_loader
from cdc.testing.servers.packages import DebianPackages, fetch
from tests.support.machines import Machine, wait_for_port

PORT = 6379
_PACKAGE = DebianPackages(
    "bookworm", ("redis-server",), "usr/bin/redis-check-rdb", without=r"adduser|passwd|lsb-base|.*systemd.*"
)


def start_redis(machine: Machine, password: str) -> tuple[str, subprocess.Popen[bytes]]:
    """Starts Redis on a machine, and returns the host and port, and the process. It keeps everything in memory."""
    root = fetch("redis7", _PACKAGE)
    file = machine.path("redis.conf")
    file.touch(mode=0o600)
    file.write_text(f"bind {machine.address}\nport {PORT}\nrequirepass {password}\nsave ''\nappendonly no\n")
    program = root / "usr" / "bin" / "redis-check-rdb"  # the server itself, by another name; Debian's is a link to it
    link = machine.path("redis-server")
    link.symlink_to(program)
    command = with_own_loader(root, machine.folder / "redis-server")
    process = machine.popen([*command, str(machine.folder / "redis.conf")], "redis")
    wait_for_port(machine.address, PORT, process)
    return f"{machine.address}:{PORT}", process
