"""What tests need and users may use too: real servers, fakes, contract suites, and a pipeline in miniature.

Imported by tests, benchmarks and examples; of what users run, the merge alone imports :mod:`tests.support.pause`,
a place
where tests can hold a driver. Importing the package loads nothing: take the module that is wanted
(:mod:`cdc.testing.servers`, …). It promises that a server which cannot be had is an error, never a silent skip, and
that no process and no temporary file outlives the one that asked for it.
"""
