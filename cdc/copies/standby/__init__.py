"""A standby on another machine copies a store over TCP, and can take over from its master.

``master`` and ``connection`` are the side that has the store open for writing; ``follower`` is the standby. ``stream``
reads what the master sends, ``copy`` writes it at the standby. ``reconcile`` finds what two stores have in common and
truncates the rest; ``role`` keeps the leadership epoch. ``protocol`` is the wire format (``docs/formats/standby.md``).

Capture, the commands and programs with a store of their own import this package. It imports :mod:`cdc.store`,
:mod:`cdc.binlog` and what lies below them; the store never imports it. Which data survives which failure:
``docs/decisions/0019``. After RocketMQ's ``HAService``, ``HAConnection`` and ``HAClient``.
"""
