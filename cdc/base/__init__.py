"""The parts that everything else uses: errors, the log, units, addresses, patterns, and the names of tables.

Imported by every other folder; imports nothing of Towpath. It promises that an error's type says whether a retry helps.
"""
