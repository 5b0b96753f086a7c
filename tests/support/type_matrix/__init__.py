"""The type matrix: edge values of every type and character set that a server lists are inserted, updated and deleted,
and each decoded value is compared with SELECT.

``catalog`` asks a server for its types and character sets. ``plan`` chooses edge values for each (``numbers``,
``temporal``, ``texts``, ``special``), and fails for a type without any. ``workload`` writes them and keeps SELECT's
answers. ``compare`` compares these with the decoded rows or the Delta table. ``run`` does all of it, and ``page``
renders ``docs/types.md``. On the command line: ``python -m tests.support.type_matrix --help``.
"""
