"""Who the command line is, and that it is only one at a time."""

from __future__ import annotations

import os
import signal
import socket
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from cdc.batches.lease import cli_owner, exclusive
from cdc.config import DestinationConfig
from cdc.errors import LeaseHeldError
from tests.support.unit_batches import make_config


def hold(config: DestinationConfig, ready: Event) -> None:
    with exclusive(config):
        ready.set()
        signal.pause()


def test_owner_names_host_and_file(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    assert cli_owner(config) == f"cli:{socket.gethostname()}:{tmp_path}/conf/shop.yaml"


def test_exclusive_names_the_other_process_and_ends_with_it(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    fork = get_context("fork")
    ready = fork.Event()
    process = fork.Process(target=hold, args=(config, ready))
    process.start()
    assert ready.wait(10)
    with pytest.raises(LeaseHeldError, match=f"process {process.pid}"), exclusive(config):
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with exclusive(config):
        assert (config.meta.path / "apply.lock").read_text() == f"{os.getpid()}\n"


def test_destinations_do_not_disturb_one_another(tmp_path: Path) -> None:
    other = make_config(tmp_path, "other")
    with exclusive(make_config(tmp_path)), exclusive(other):
        assert (other.meta.path / "apply.lock").exists()
