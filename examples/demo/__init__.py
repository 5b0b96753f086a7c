"""`make demo`: a shop's database with live traffic, Airflow, Spark, and the resulting Delta tables.

Run it with ``python -m examples.demo`` from the repository. It may import anything of ``cdc``; nothing imports it.
It promises to change only its work folder, a database of its own, and processes that it started.
"""
