"""Copies of a store elsewhere: on a standby, which follows it, and in an archive in an object store.

Imported by capture, which feeds them, by the commands, and by readers of what the store has no longer. They promise
that what they have acknowledged is there as the store had it.
"""
