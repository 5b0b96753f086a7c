"""Files and folders: durable writing, locks, permissions, work folders, caches, object stores, and encrypted files.

Imports ``cdc.base`` alone. It promises that a file which :mod:`.durable` has replaced is the old one or the new one,
whatever dies.
"""
