"""Encryption at rest: files of row data as blocks of AES-256-GCM (``docs/formats/encrypted.md``).

- :mod:`~cdc.disk.encryption.keys` knows the keys of this process, and which one new files below a folder get.
- :mod:`~cdc.disk.encryption.container` has the layout: the header, and the frames in blocks.
- :mod:`~cdc.disk.encryption.read` opens files, encrypted or not, by the offsets of their content.
- :mod:`~cdc.disk.encryption.append` writes files, encrypted or not.

All other packages know a file by its content: offsets and sizes are those of the binlog file inside.
"""
