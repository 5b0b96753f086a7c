"""Event stores by Canal's contract, for programs that put, get and ack whole transactions in one process.

``contract`` is the contract and ``transaction`` its values. ``memory_store`` keeps transactions in a ring
(``ring``); ``file_store`` keeps them on disk, in a store that ``transaction_log`` writes and ``iteration`` reads.
``record_batch`` turns transactions into bytes and index entries, ``meter`` counts.

Imports the store; imported by programs of users, by replication's tests and by the contract suite. The way from the
binlog to Delta does not use it.
"""
