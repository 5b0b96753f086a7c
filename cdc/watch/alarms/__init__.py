"""Alarms: a webhook, a mail or a command is told when something is wrong with a destination.

``conditions`` finds the faults from the status of a destination; ``book`` keeps, in a file, the raised alarms and the
handlers that took them; ``notice`` is the document that ``handlers`` send; ``watch`` runs these parts in a thread of
``cdc capture`` or ``cdc server``. It imports :mod:`cdc.watch.status` and the layers below. It promises that a handler
that fails or hangs disturbs neither capture nor server, and that an alarm is sent again until its handler has taken
it.
"""
