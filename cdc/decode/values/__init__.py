"""The second step of the types whose bytes the kernels only copy: SET, TIME, UUID and the like.

Each takes the column's raw values as an Arrow array and returns the final one, a column at a time. Imported by
``cdc.decode`` alone.
"""
