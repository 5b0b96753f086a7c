"""Spark's processes: sessions, the driver's JVM, jars, and errors that cross from workers and Java to the user.

``session`` makes sessions for a configuration, ``spark_settings`` has their settings, ``driver`` starts and ends the
JVM, ``jars`` fetches Delta's jars, ``failures`` turns exceptions into sentences, ``private_pyspark`` has PySpark's
undocumented names. Imports no other folder of the lake; all others may import it. Promises that no setting and no key
appears on a command line.
"""
