"""The compiled loops over row events. ``scan`` finds a table's events and lists tables and table maps; ``rows`` finds
and measures the rows of these events; ``fill`` writes their values into Arrow buffers; ``values`` converts single
values; ``constants`` holds the numbers that kernels and their callers share.

Imported by ``cdc.decode`` alone; imports ``cdc.kernels`` (compiler, checksums, byte access). The kernels promise to
read nothing outside an event and to write nothing outside their buffers, whatever the bytes are. Python passes
arrays that travel together as one NamedTuple; the functions that are called for each row or block take single arrays,
where tuples were measured to be slower.
"""
