"""The format of the binary log: event headers, table maps, rare events, index entries, and the framing of transactions;
positions in it and GTIDs. ``sql`` has its statements, and the definitions of tables that they change.

Imported by all folders from the configuration upwards; imports ``kernels``, ``disk`` and ``base``. It promises a closed
world: every event type is decoded, skipped for a stated reason, or refused by name.

A stream of events is framed by ``framer`` (Python), ``frame_buffers`` and the compiled ``frame_kernel``,
``frame_events`` and ``frame_transactions``, which share the numbers in ``frame_state``. The events of a compressed
transaction are a second input inside the first; ``frame_payload`` (compiled) unpacks small ones, and ``payload``
(Python) all others.
"""
