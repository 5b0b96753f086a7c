"""MySQL's binary JSON as text, exactly as SELECT prints it, and the diffs of partial updates. ``convert`` converts a
column, ``document_kernels`` and ``scalar_kernels`` are its compiled loops, ``diffs`` applies partial updates.

Imported by ``cdc.decode`` alone; imports ``cdc.binlog`` and ``cdc.decode.kernels``. It promises to read nothing outside
a value, and to end after a number of steps that the document's size bounds, whatever the bytes are.
"""
