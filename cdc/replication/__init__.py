"""A second process, on another machine, that follows a store over TCP, and can take its place.

``master`` and ``link`` are the side that has the store open for writing, ``follower`` is the other one; ``stream``
sends, ``copy`` writes; ``agree`` finds what two stores have in common, ``cut`` removes the rest; ``term`` says who is
the master. ``frames`` and ``messages`` are the protocol (``docs/formats/standby.md``). After RocketMQ's ``HAService``,
``HAConnection`` and ``HAClient``; which promise holds when: ``docs/decisions/0019``.
"""
