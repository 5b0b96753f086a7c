"""Compares tables with the source, in the Spark session of a spark-submit of your own.

::

    spark-submit OPTIONS spark_jobs/verify.py [DEST] [options of ``cdc verify``]
"""

import sys

from cdc.cli.main import main

sys.exit(main(["verify", *sys.argv[1:]]))
