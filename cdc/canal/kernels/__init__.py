"""The compiled loops that make Canal's entries: ``survey`` lists what becomes an entry in a byte range, ``entries``
writes the entries, ``texts`` writes single values as text, ``floats`` gives numbers Java's form.

Imported by ``cdc.canal`` alone. The kernels promise to read nothing outside an event and to write nothing outside their
buffers, whatever the bytes are.
"""
