"""The compiled loops over row events: ``scan`` finds a table's events, ``rows`` finds and measures their rows, ``fill``
writes the values into Arrow buffers, a block of rows at a time, by ``put`` and ``single``, which know one value;
``constants`` holds the numbers they agree on.

Imported by ``cdc.decode`` alone; imports ``cdc.binlog`` (its ``jit``, checksums, copying). They promise to read nothing
outside an event and to write nothing outside their buffers, whatever the bytes say.
"""
