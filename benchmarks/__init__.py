"""Benchmarks: ratios side by side in one run, never in a timed test. ``make bench`` runs them."""
