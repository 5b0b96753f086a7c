"""Spark's Python daemon with the decoder loaded: each worker is forked from it and finds the kernels compiled.

Otherwise each new worker would import Numba and load the kernels from their cache, which takes some seconds of a core;
a short batch on a cold session pays that several times. ``spark.python.daemon.module`` names this module; Spark starts
it as ``python -m cdc.lake.rows.worker_daemon WORKER_MODULE``.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    """Loads what workers need, then runs ``pyspark.daemon``."""
    if sys.argv[1:2] == ["pyspark.worker"]:
        import pyspark.worker  # noqa: F401

        import cdc.lake.rows.split_reader  # noqa: F401
        from cdc.decode.reader import warm_up

        warm_up()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
