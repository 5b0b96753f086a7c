"""A channel in memory with transactions for puts and takes, after Flume's ``MemoryChannel``.

``channel`` is the channel, ``queue`` holds its items, ``transaction`` has begin, commit, rollback and close. Programs
of users import it; it imports neither the store nor the event store.

It promises that no item is seen before its put is committed, and that none is gone before its take is committed.
"""
