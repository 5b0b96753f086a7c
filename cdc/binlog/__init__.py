"""The format of the binary log: event headers, table maps, rare events, index entries, and the framing of transactions.

Imported by ``source``, ``capture``, ``store``, ``replication`` and ``decode``; imports only ``errors``, ``positions``
and ``sql``. It promises a closed world: every event type is decoded, skipped for a stated reason, or refused by name.

A stream of events is framed by ``framer`` (Python), ``frame_buffers`` and the compiled ``frame_kernel``,
``frame_events`` and ``frame_transactions``, which share the numbers in ``frame_state``. The events of a compressed
transaction are a second input inside the first; ``frame_payload`` (compiled) unpacks small ones, by the address that
``zstd`` gives it, and ``payload`` (Python) all others. ``jit`` compiles all kernels of Towpath, ``memory`` and ``crc``
are the kernels that the others share.
"""
