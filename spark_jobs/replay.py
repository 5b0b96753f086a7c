"""Builds tables again from the store, in the Spark session of a spark-submit of your own.

::

    spark-submit OPTIONS spark_jobs/replay.py [DEST] [options of ``cdc replay``]
"""

import sys

from cdc.cli.main import main

sys.exit(main(["replay", *sys.argv[1:]]))
