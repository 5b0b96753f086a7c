"""Merges the batches that wait, in the Spark session of a spark-submit of your own.

::

    spark-submit OPTIONS spark_jobs/apply.py [DEST] [options of ``cdc apply``]
"""

import sys

from cdc.cli.main import main

sys.exit(main(["apply", *sys.argv[1:]]))
