"""A server of stores for tests: in a thread of the test's process, or as the command ``cdc server``."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cdc.config import DestinationConfig, load
from cdc.meta import open_meta
from cdc.server.app import ServerApp
from cdc.server.connections import of_one_server
from cdc.server.destinations import ServedDestination
from cdc.server.live import LiveDestinations
from tests.support.unit_batches import IDENTITY, make_config, make_store

TOKEN = "0123456789abcdef0123456789abcdef"
OTHER_TOKEN = "fedcba9876543210fedcba9876543210"


def with_tokens(config: DestinationConfig, **server: Any) -> DestinationConfig:
    """Adds a section ``server`` with the tokens of ``apply`` and ``audit`` to a configuration file."""
    conf = config.file.parent
    for name, token in (("apply", TOKEN), ("audit", OTHER_TOKEN)):
        (conf / f"{name}.token").write_text(f"{token}\n")
    document = yaml.safe_load(config.file.read_text())
    document["server"] = {"tokens": {"apply": {"file": "apply.token"}, "audit": {"file": "audit.token"}}, **server}
    config.file.write_text(yaml.safe_dump(document))
    return load(config.file)


def client_config(served: DestinationConfig, folder: Path, url: str, **store: Any) -> DestinationConfig:
    """Writes and loads the configuration of a client, in a folder of its own: that of the server without store, meta
    and server, and with the server's address."""
    conf = folder / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "client.token").write_text(f"{TOKEN}\n")
    document = yaml.safe_load(served.file.read_text())
    for section in ("meta", "server"):
        document.pop(section, None)
    target = document["apply"]["target"]
    if "://" not in target:
        document["apply"]["target"] = str((served.file.parent.parent / target).resolve())
    document["store"] = {"kind": "server", "url": url, "token_file": "client.token", **store}
    (conf / served.file.name).write_text(yaml.safe_dump(document))
    return load(conf / served.file.name)


def served_destination(folder: Path) -> ServedDestination:
    """Returns a destination with tokens, a store and a source that is known."""
    config = with_tokens(make_config(folder))
    make_store(config.store.path)
    open_meta(config).bind_source(IDENTITY)
    return ServedDestination(config)


@contextmanager
def in_thread(served: Sequence[ServedDestination], port: int = 0) -> Iterator[str]:
    """Serves in a thread while the context lasts; yields the address."""
    live = LiveDestinations(served)
    answers = ServerApp(live)
    settings = uvicorn.Config(
        answers.application(),
        http=of_one_server(),
        port=port,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, name="test-server", daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start in time"
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        for destination in live:
            destination.close()


@dataclass
class ServerProcess:
    """The command ``cdc server``."""

    conf: Path
    log: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    url: str = ""

    def start(self) -> str:
        """Starts the command, and returns its address; started again, it listens at the same port."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cdc", "--conf-dir", str(self.conf), "server", "--http", str(self.port)],
                stdout=log,
                stderr=log,
                env={**os.environ, "NO_COLOR": "1"},
            )
        deadline = time.monotonic() + 60
        while True:
            text = self.log.read_bytes()[begin:].decode(errors="replace")
            match = re.search(r"Serving \S.* at (https?://\S+?:(\d+))\.", text)
            if match is not None:
                self.url, self.port = match[1], int(match[2])
                return self.url
            assert self.process.poll() is None, f"cdc server ended: {text}"
            assert time.monotonic() < deadline, f"cdc server did not start: {text}"
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGTERM, wait_s: float = 40) -> int:
        """Ends the command, and returns its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(wait_s)


@contextmanager
def server_process(config: DestinationConfig, folder: Path) -> Iterator[ServerProcess]:
    """Runs ``cdc server`` for the configuration folder of a destination while the context lasts."""
    server = ServerProcess(config.file.parent, folder / "server.log")
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


# --- certificates


@dataclass(frozen=True)
class Certificates:
    """A CA, and a certificate of a server that it signed."""

    ca: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, name: str = "ca", address: str = "127.0.0.1") -> Certificates:
    """Makes a CA of its own, and a certificate for a server at localhost and another address."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Towpath test {name}")])

    def builder(subject: x509.Name, public: Any) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    ca = (
        builder(issuer, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(address))]
    signed = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "towpath server")]), key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    certificates = Certificates(folder / f"{name}.pem", folder / f"{name}-server.pem", folder / f"{name}-server.key")
    certificates.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    certificates.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    certificates.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificates
