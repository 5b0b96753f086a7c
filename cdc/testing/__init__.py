"""What tests need and users may use too: real servers, fakes, contract suites, and a pipeline in miniature.

Imported by tests, benchmarks and examples, and by nothing that users run. Importing the package loads nothing: import
the module that is needed (:mod:`cdc.testing.servers`, …). It promises that a server which cannot be had is an error,
never a silent skip, and that no process and no temporary file outlives the one that asked for it.
"""
