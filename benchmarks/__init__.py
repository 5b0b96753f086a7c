"""Benchmarks, run by ``make bench``. Each compares Towpath with something else in the same run, and prints ratios."""
