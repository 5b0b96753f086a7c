"""Spark's processes: sessions, the driver's JVM, jars, and errors that cross from workers and Java to the user.

``session`` makes sessions for a configuration, ``driver`` starts and ends the JVM, ``jars`` fetches Delta's jars,
``failures`` turns exceptions into sentences. Imports no other package of ``spark_jobs``; all others and
``cdc.lake.pipeline`` may import it. Promises that no setting and no key appears on a command line.
"""
