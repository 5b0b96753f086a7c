"""MySQL's binary JSON as text, exactly as SELECT prints it, and the diffs of partial updates.

Imported by ``cdc.decode`` alone; imports its ``kernels`` and pyarrow.
"""
