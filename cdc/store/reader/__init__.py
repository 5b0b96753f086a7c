"""Reading a store from any process: positions, batches, staged ranges. Writes nothing."""
