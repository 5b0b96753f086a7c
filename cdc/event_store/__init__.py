"""The store in memory, after Canal's ``MemoryEventStoreWithBuffer``.

``memory`` is the store, ``ring`` its buffer. It keeps the contract of every store, inside one process.
"""
