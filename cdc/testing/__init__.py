"""What users may use to test with Towpath: real servers, fakes and the contract suites.

Imported by tests, benchmarks and examples, and by nothing that users run. Importing the package loads nothing: import
the module that is needed. It promises that a server which cannot be had is an error, never a silent skip, and that no
process and no temporary file outlives the process that asked for it.

- :mod:`cdc.testing.servers` runs real MySQL, MariaDB and ZooKeeper servers.
- :mod:`cdc.testing.source` is a fake MySQL source with fault injection.
- :mod:`cdc.testing.store_contract` and :mod:`cdc.testing.meta_contract` are the test suites that every implementation
  of an event store or a meta must pass; :mod:`cdc.testing.pipeline` is a fake of the pipeline's steps.
- :mod:`cdc.testing.faults` and :mod:`cdc.testing.disk` inject disk faults; :mod:`cdc.testing.binlog`,
  :mod:`cdc.testing.transactions`, :mod:`cdc.testing.stores` and :mod:`cdc.testing.threads` build what tests need.

Generators, workloads and comparisons that only Towpath's own tests use are in ``tests/support``.
"""
