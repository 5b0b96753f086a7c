"""Canal's protocol: packets, and the entries in which row changes arrive at Canal's clients.

``tables`` describes a table's columns to the kernels, ``texts`` has values whose text a conversion makes,
``statements`` writes the entries of statements, and ``encoder`` turns byte ranges of segments into entries. ``packets``
has the packets that frame them, ``fields`` the encoding of single fields, ``filters`` the filter expressions, ``zones``
the offsets of time zones. ``canal.proto`` defines all messages; ``messages`` reads them with the library protobuf,
which the extras ``server`` and ``kafka`` bring. ``mq`` makes messages for Kafka of the entries, ``cluster`` coordinates
servers and clients by ZooKeeper.

The server imports it; apart from ``mq`` and ``cluster`` it imports the decoder alone, and knows no network. It promises
that an entry has the fields and texts that Canal's own server gives it, apart from the differences listed in
``docs/formats/canal.md``.
"""
