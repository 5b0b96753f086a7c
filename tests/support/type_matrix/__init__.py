"""The type matrix: every type and character set that a server itself lists, with edge values, inserted, updated and
deleted; what arrives is compared, value by value, with what SELECT showed.

``catalog`` asks a server which types and character sets it has. ``plan`` finds edge values for each (``numbers``,
``temporal``, ``texts``, ``special``), and fails for a type that has none. ``play`` writes them and keeps SELECT's
answers; ``compare`` holds them against what was decoded, or against the Delta table; ``page`` makes ``docs/types.md``.
By hand: ``python -m tests.support.type_matrix --help``.
"""
