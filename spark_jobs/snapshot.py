"""Loads tables from the source, in the Spark session of a spark-submit of your own.

::

    spark-submit OPTIONS spark_jobs/snapshot.py [DEST] [options of ``cdc snapshot``]
"""

import sys

from cdc.cli.main import main

sys.exit(main(["snapshot", *sys.argv[1:]]))
