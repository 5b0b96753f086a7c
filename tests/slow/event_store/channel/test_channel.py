"""A channel whose process is killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

AGENT = """
import sys, threading
from pathlib import Path
from cdc.event_store.channel.channel import MemoryChannel

out, last = Path(sys.argv[1]), int(sys.argv[2])
done = out.read_text().split("\\n")[:-1] if out.exists() else []
out.write_text("".join(line + "\\n" for line in done))  # a line that was cut off
channel = MemoryChannel(capacity=50, transaction_capacity=10, size_of=lambda number: 8)
begin = int(done[-1]) + 1 if done else 0

def source():
    for first in range(begin, last, 7):
        with channel.transaction() as transaction:
            for number in range(first, min(first + 7, last)):
                transaction.put(number)

threading.Thread(target=source, daemon=True).start()
print("ready", flush=True)
with out.open("a") as file:
    number = begin - 1
    while number < last - 1:
        with channel.transaction() as transaction:
            number = transaction.take()
            file.write(f"{number}\\n")
            file.flush()
"""


@pytest.mark.rule("flume-channel-21")
def test_fault_a_dead_agent_loses_nothing_where_the_source_goes_on_behind_what_was_written(tmp_path: Path) -> None:
    """The channel dies with its process; the position is what was taken and written, so the source gives it again."""
    out, last = tmp_path / "out", 200_000
    pauses = random.Random(7)
    for _ in range(3):
        agent = subprocess.Popen([sys.executable, "-c", AGENT, str(out), str(last)], stdout=subprocess.PIPE, text=True)
        assert agent.stdout is not None
        assert agent.stdout.readline() == "ready\n"
        time.sleep(pauses.uniform(0.05, 0.3))
        agent.send_signal(signal.SIGKILL)
        assert agent.wait() == -signal.SIGKILL, "it was killed in the middle"
        agent.stdout.close()
    subprocess.run([sys.executable, "-c", AGENT, str(out), str(last)], check=True, stdout=subprocess.DEVNULL)
    assert out.read_text() == "".join(f"{number}\n" for number in range(last))
