"""Maintains the store and the tables, in the Spark session of a spark-submit of your own.

::

    spark-submit OPTIONS spark_jobs/maintain.py [DEST] [options of ``cdc maintain``]
"""

import sys

from cdc.cli.main import main

sys.exit(main(["maintain", *sys.argv[1:]]))
