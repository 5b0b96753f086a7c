"""The archive of a destination: a copy of its store and its meta in an object store (``store.archive``).

::

    restore     makes store and meta anew from the archive
    background  the thread of capture that copies
    writer      copies finished segments, small files and the meta; removes what is old
    states      who writes the archive, and what it has
    format      the documents in the archive
    objects     the object store

Capture starts the thread, the commands do the rest. The store's retention knows the archive by ``archive.json`` alone.
It promises that a state of the archive names only objects that are there whole, that a store which is not the writer
any more is refused, and that an archive that is away never stops capture.
"""
