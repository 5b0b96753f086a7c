"""The files of a store: their names, layouts and versions (``docs/formats``).

The ground floor of :mod:`cdc.store`: imports nothing of its other packages, and each of them imports it, as do
replication, batches, decode and the commands.

``layout`` is the folder and the names in it, ``segment_header`` the first events of a segment, ``index`` an entry for
each transaction, ``checkpoint`` how far a store is durable, ``time_index`` (``clock.log``) commit times by the
source's clock, ``missing`` what retention removed or damage destroyed, ``state`` the small files of capture.
"""
