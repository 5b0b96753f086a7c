"""Many destinations on one machine: ``make bench-scale``, or ``python -m benchmarks.scale``."""
