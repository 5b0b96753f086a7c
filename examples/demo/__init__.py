"""`make demo`: a shop's database, live traffic, Airflow, Spark and the Delta tables that come out, for real.

Run it with ``python -m examples.demo`` from the repository. It may import anything of ``cdc``; nothing imports it.
It promises to touch only its work folder, a database of its own, and processes that it started.
"""
