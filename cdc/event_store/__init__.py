"""Event stores by Canal's contract, for programs that put, get and ack whole transactions in one process.

``contract`` is the contract and ``transaction`` its values. ``memory_store`` keeps transactions in a ring
(``ring``); ``file_store`` keeps them on disk, in a store that ``transaction_log`` writes and ``iteration`` reads.
``record_batch`` turns transactions into bytes and index entries, ``meter`` counts. ``memory_meta`` is a meta that no
configuration selects. ``channel`` is Flume's memory channel, and imports none of the others.

Imports the store and the meta; imported by :mod:`cdc.streaming`, by programs of users and by the contract suites. The
way from the binlog to Delta does not use it.
"""
