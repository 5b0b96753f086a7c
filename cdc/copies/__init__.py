"""Copies of a store elsewhere: on a standby, which follows it, and in an archive in an object store.

Imported by capture, which feeds them, by the commands, and by readers that need transactions which the store has
removed. A copy promises that it holds, unchanged, every byte that it has acknowledged.
"""
