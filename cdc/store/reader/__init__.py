"""Reading a store from any process: positions, batches, byte ranges. Writes nothing.

``reader`` answers questions about a store, ``batch_builder`` decides which transactions make a batch, ``staged`` reads
byte ranges that were copied to a URI.

Imported by batches, decode, the commands, replication and Spark's jobs; imports the formats. A reader takes no lock:
what it returns is visible and stays so, or an error says that retention removed it.
"""
