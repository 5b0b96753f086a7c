"""Benchmarks, run by ``make bench``. Each compares Towpath with something else in the same run, or a whole process.

``python -m benchmarks`` (``__main__``) prints one table of :mod:`~benchmarks.lines`, which :mod:`~benchmarks.warm`,
:mod:`~benchmarks.cold`, :mod:`~benchmarks.capture`, :mod:`~benchmarks.snapshot` and :mod:`~benchmarks.verify` measure
with :mod:`~benchmarks.accounting`; :mod:`~benchmarks.results` keeps it as JSON, and :mod:`~benchmarks.page` makes a page
of the documentation from that. :mod:`~benchmarks.peers` has the other programs (``make bench-peers``). The remaining
modules look at single parts in more detail, by ``python -m benchmarks.NAME``. Nothing in ``cdc``
imports this package.
"""
