"""The pipelines that people build from MySQL into a lake, compared: ``make bench-pipelines``.

``python -m benchmarks.pipelines`` (``__main__``) gives each pipeline the same table of the same MySQL server, lets it
load the table, follow single commits and a backlog, and get through SIGKILLs and an ALTER TABLE;
:mod:`~benchmarks.pipelines.phases` measures that. :mod:`~benchmarks.pipelines.pipeline` runs the processes of one
pipeline, :mod:`~benchmarks.pipelines.peers` has all of them, and ``settings/`` every file and command that their users
write. :mod:`~benchmarks.pipelines.source` writes the rows and compares them with the target.
:mod:`~benchmarks.pipelines.results` keeps the figures as JSON, and :mod:`~benchmarks.pipelines.page` makes a page of
the documentation from them.
"""
