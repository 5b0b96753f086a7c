"""Spark's Python daemon with our decoder loaded: every worker is forked from it and finds the kernels compiled.

Without it each new worker imports Numba and loads the kernels from their cache by itself, some seconds of a core each,
which a short batch on a cold session pays several times. Set by ``spark.python.daemon.module``; Spark starts it as
``python -m spark_jobs.runtime.daemon WORKER_MODULE``.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    """Load what workers need, then become ``pyspark.daemon``."""
    if sys.argv[1:2] == ["pyspark.worker"]:
        import pyspark.worker  # noqa: F401

        import spark_jobs.source.data_source  # noqa: F401
        from cdc.decode.reader import warm_up

        warm_up()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
