"""The writer of a store on disk: one for each store, in one process.

``log`` opens a store and appends to its newest segment, ``flush`` makes appended bytes durable and then visible,
``durability`` says when that happens, ``segment`` is a segment that is being written. Nothing is visible before its
bytes are on the disk.

Imported by capture, replication and the event store. Knows neither readers nor retention nor its callers: a check of
the disk is passed to those who append.
"""
