"""Alarms: a webhook, a mail or a command is told when something is wrong with a destination.

``conditions`` finds what is wrong from the status of a destination; ``book`` remembers, in a file, what was raised and
who was told; ``notice`` has the document that is sent; ``handlers`` send it; ``watch`` runs all of that in a thread of
``cdc capture`` or ``cdc server``. It imports :mod:`cdc.watch.status` and the layers below. It promises that a handler
that fails or hangs disturbs neither capture nor server, and that an alarm is sent again until its handler has taken it.
"""
