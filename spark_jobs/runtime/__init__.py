"""Spark's processes: the session, the driver's JVM, the workers' daemon, jars, and errors as sentences."""
