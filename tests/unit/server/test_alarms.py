"""A server sends the alarms of its instances."""

from __future__ import annotations

from pathlib import Path

import httpx
import yaml

from cdc.server import EmbeddedServer
from tests.support.alarms import receiver, wait_until
from tests.support.server import with_tokens
from tests.unit.watch.alarms.test_watch import prepared, succeed


def test_a_server_sends_the_alarms_of_its_instances(tmp_path: Path) -> None:
    with receiver() as hook:
        config = with_tokens(prepared(tmp_path, webhook={"url": hook.url}))
        document = yaml.safe_load(config.file.read_text())
        document["server"]["scan_s"] = 0.1
        config.file.write_text(yaml.safe_dump(document))
        with EmbeddedServer(config.file.parent, http=0) as server:
            wait_until(lambda: hook.events() == [("raised", "run_failed")], "the alarm")
            text = httpx.get(f"{server.url}/metrics", trust_env=False).text
            assert 'towpath_alarms{alarm="run_failed",destination="shop"} 1.0' in text
            assert 'towpath_alarm_messages_total{destination="shop",handler="webhook",outcome="sent"} 1.0' in text
            succeed(config)
            wait_until(lambda: len(hook.events()) == 2, "the end")
            del document["alarms"]
            config.file.write_text(yaml.safe_dump(document))
            wait_until(lambda: "towpath_alarms" not in httpx.get(f"{server.url}/metrics", trust_env=False).text, "")
        assert hook.events()[1] == ("resolved", "run_failed")
