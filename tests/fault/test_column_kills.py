"""kill -9 of ``cdc snapshot`` while it reads the columns of a statement again, and gives the rows their values.

The process is killed when some chunks are read, before an ALTER, before the MERGE that carries the position, and between
that and the table's return. The next call goes on from there: chunks that were read are not read again, and the values
are merged once. ``TOWPATH_KILLS`` says how often it is killed at each moment (once, unless ``make test-kill`` sets it).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.source.snapshot import SnapshotFiles
from cdc.testing.servers import Server
from tests.fault.support import wait_for
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.compare import ledger_faults

Database = Callable[[Server], str]
ROWS = 40
KILLS = int(os.environ.get("TOWPATH_KILLS", "1"))
_PROGRAM = """
import sys
from pathlib import Path
from cdc.batches import parking
from cdc.cli.main import main
from cdc.source.snapshot import reader
from cdc.lake.apply import commit
from cdc.lake.apply.schema import spark_lake
from tests.support.pause import pause

moment, path, chunks = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
if moment == "chunk":
    read_chunk = reader.SegmentReader.read_chunk
    def read(self, conn, chunk):
        if len(self._files.records()) >= chunks:
            pause(path, "chunk")
        return read_chunk(self, conn, chunk)
    reader.SegmentReader.read_chunk = read
elif moment == "step":
    spark_lake.before_step = lambda table, step: pause(path, step) if "ADD COLUMN" in step else None
elif moment == "statement":
    commit.before_statement = lambda table: pause(path, table)
else:
    unpark = parking.unpark
    parking.unpark = lambda *arguments: pause(path, "level") or unpark(*arguments)
sys.exit(main(sys.argv[4:]))
"""


def kill_at(loop: Loop, moment: str, place: Path, chunks: int, *arguments: str) -> None:
    """Begins ``cdc snapshot`` and kills it, with its JVM, at this moment: ``chunk`` is when so many are read."""
    file = loop.config.file
    words = ["--conf-dir", str(file.parent), "snapshot", loop.config.name, *arguments]
    log = place.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, moment, str(place), str(chunks), *words], stdout=output, stderr=output
        )
    marker = place.with_name(place.name + ".here")
    wait_for(lambda: marker.exists() or process.poll() is not None, f"the snapshot at its {moment}", 300)
    assert process.poll() is None, log.read_text()[-3000:]
    process.kill()
    process.wait()


def chunks(loop: Loop) -> dict[str, int]:
    return {
        f"{files.id}/{file.name}": file.stat().st_mtime_ns
        for files in SnapshotFiles.find(loop.config, loop.db, "t")
        for file in Path(files.folder.uri).glob("chunk-*.json")
    }


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("turn", range(KILLS))
@pytest.mark.parametrize("moment", ["statement", "chunk", "step", "level"])
def test_a_snapshot_of_columns_is_killed(
    moment: str, turn: int, tmp_path: Path, mariadb11: Server, database: Database, seed: int
) -> None:
    kept = random.Random(f"{seed} {turn}").randint(1, ROWS // 5 - 1)
    loop = Loop(
        tmp_path,
        mariadb11,
        database(mariadb11),
        overrides="DB.t: {mode: scd2}",
        snapshot="{chunk_rows: 5, parallel: 1}",
    )
    values = ", ".join(f"({i}, 'v{i}')" for i in range(ROWS))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", f"INSERT INTO t VALUES {values}")
    loop.capture()
    loop.apply_all()
    loop.sql(
        "ALTER TABLE t ADD COLUMN u CHAR(36) DEFAULT (UUID()), ADD COLUMN n INT NOT NULL DEFAULT 4",
        "UPDATE t SET v = 'later' WHERE id < 3",
        "DELETE FROM t WHERE id = 3",
    )
    loop.capture()
    loop.apply_all()
    with capturing(loop.config):
        kill_at(loop, moment, tmp_path / "held", kept)
        parked = BatchService(loop.config).subscription().parked[f"{loop.db}.t"]
        assert (parked.due, parked.columns and parked.columns.names) == ("snapshot", ("u",))
        done = chunks(loop)
        assert len(done) == kept if moment == "chunk" else len(done) > 6
        (loaded,) = pipeline.snapshot(loop.config)
    if moment == "level":  # the values were merged, and only the rest of the way was left
        assert (loaded.columns, loaded.chunks) == ((), 0)
    else:
        assert (loaded.columns, loaded.rows, loaded.reread) == (("u",), ROWS - 1, 0)
    assert BatchService(loop.config).subscription().parked == {} and chunks(loop) == {}
    current = loop.delta("t", "id, v, u, n, _current", "id, _seq")
    assert [{k: row[k] for k in ("id", "v", "u", "n")} for row in current if row["_current"]] == loop.select("t")
    assert [(row["id"], len(row["u"]), row["n"]) for row in current if not row["_current"]] == [
        (key, 36, 4) for key in range(4)
    ]
    assert not ledger_faults(loop.config.apply.target, loop.db, "t", loop.config.meta.path)
