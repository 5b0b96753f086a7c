"""Requests to an object store: how many a run and ``cdc status`` make for tables that did not change, and for one that
did. The object store is moto, in this process; it counts.

``python -m benchmarks.scale.requests --tables 500`` prints the counts as JSON. It is a process of its own, because its
Spark needs other jars than that of the local lake.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

from benchmarks.scale.results import CHANGED, UNCHANGED, Requests
from benchmarks.scale.workload import INSERT, PASSWORD_ENV, Template, merge_all, record
from cdc.base.targets import LOG_FOLDER
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.lake.delta import proof
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from cdc.watch.status import collect
from tests.support.s3 import KEY, SECRET, S3Server, serve

_CONFIGURATION = """\
source: {{url: 'mysql://{user}@{host}:{port}', password_env: {env}, server_id: 4711, start: {{file: {file}, pos: 4}}}}
tables: {{include: ['{include}']}}
store: {{path: store}}
meta: {{path: meta}}
apply: {{target: 's3a://lake/tables'}}
s3: {{endpoint: '{endpoint}', access_key_id: {key}, secret_access_key_env: BENCH_S3_SECRET}}
batch: {{max_wait_s: 0}}
spark: {{master: 'local[2]', conf: {{spark.driver.memory: 1g}}}}
"""
_COLUMNS = "id INT AUTO_INCREMENT PRIMARY KEY, customer INT NOT NULL, note VARCHAR(50), changed TIMESTAMP(3) NULL"


class Bench:
    """A destination in S3 with many tables, and the count of its requests."""

    def __init__(self, folder: Path, server: Server, s3: S3Server, tables: int) -> None:
        self._folder, self._server, self._s3 = folder, server, s3
        self.tables = [f"wide.t{number:04d}" for number in range(tables)]
        self._server.execute(
            "CREATE DATABASE wide",
            *(f"CREATE TABLE {table} ({_COLUMNS})" for table in self.tables),
            "FLUSH BINARY LOGS",
        )
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            self._file = str(cursor.fetchall()[-1][0])

    def configure(self, include: str) -> DestinationConfig:
        file = self._folder / "conf" / "wide.yaml"
        file.parent.mkdir(exist_ok=True)
        text = _CONFIGURATION.format(
            user=USER, host=HOST, port=self._server.port, env=PASSWORD_ENV, file=self._file, include=include,
            endpoint=self._s3.endpoint, key=KEY,
        )  # fmt: skip
        file.write_text(text, encoding="utf-8")
        return load(file)

    def make_tables(self) -> DestinationConfig:
        """Lets Spark create the first two tables, copies the second one, and returns the destination with all."""
        busy, idle = self.tables[:2]
        config = self.configure(f"{busy}|{idle}".replace(".", r"\."))
        self.change(config)
        merge_all(config)
        files, place = self._s3.filesystem(), "lake/tables/wide"
        log = f"{LOG_FOLDER}/{0:020d}.json"
        template = Template(files.cat_file(f"{place}/{idle.partition('.')[2]}/{log}").decode())
        ids, contents = {}, {}
        for table in self.tables[2:]:
            text, ids[table] = template.made_for(config)
            contents[f"{place}/{table.partition('.')[2]}/{log}"] = text.encode()
        files.pipe(contents)
        config = self.configure(r"wide\..*")
        self.change(config)
        record(config, ids)
        merge_all(config)
        return config

    def change(self, config: DestinationConfig) -> None:
        """Commits a row in the first table, and captures it."""
        self._server.execute(INSERT.format(self.tables[0]))
        Capture(config).run(until_current=True)

    def counted(self, part: str) -> dict[str, int]:
        """Returns the requests so far by method: those for the table ``busy``, for the ``idle`` ones, or ``other``."""
        counter = Counter(request.split()[0] for request in self._s3.requests if _part_of(request) == part)
        return dict(sorted(counter.items()))

    def begin(self) -> None:
        """Forgets what was counted and what this process knows of tables, as at the start of a process."""
        proof._looked_at.clear()
        self._s3.requests.clear()


def _part_of(request: str) -> str:
    key = request.split()[1]
    return "busy" if "tables/wide/t0000" in key else "idle" if "tables/wide/t" in key else "other"


def measure(tables: int) -> list[Requests]:
    measured = []
    os.environ[PASSWORD_ENV] = PASSWORD
    os.environ["BENCH_S3_SECRET"] = SECRET
    with (
        tempfile.TemporaryDirectory(prefix="towpath-bench-") as folder,
        Server("mysql9") as server,
        serve("lake") as s3,
        mock.patch("cdc.lake.delta.mirrors.cache_dir", return_value=Path(folder) / "cache"),
    ):
        bench = Bench(Path(folder), server, s3, tables)
        config = bench.make_tables()

        def add(work: str, count: int, part: str) -> None:
            measured.append(Requests(work=work, tables=count, counts=bench.counted(part)))

        bench.change(config)
        bench.begin()
        merge_all(config)
        add(UNCHANGED, tables - 1, "idle")
        add(CHANGED, 1, "busy")
        add("a run, apart from tables", 0, "other")
        bench.begin()
        merge_all(config)
        add("a run that finds nothing", tables, "idle")
        bench.begin()
        collect(config)
        add("first `cdc status`, tables that did not change", tables - 1, "idle")
        bench.begin()
        collect(config)
        add("later `cdc status`, tables that did not change", tables - 1, "idle")
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tables", type=int, default=500)
    options = parser.parse_args()
    print(json.dumps([requests.model_dump() for requests in measure(options.tables)]))


if __name__ == "__main__":
    main()
