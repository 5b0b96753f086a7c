"""The changes of rows that foreign keys make inside the storage engine, without row events: found from the changes of
parents and the rows in the lake, and given to the merge of the children.

The way of a batch: :mod:`.reach` finds the tables that its changes may reach, :mod:`.search` the rows, by executing the
actions (:mod:`cdc.lake.foreign_keys`) on the changes of the batch. :mod:`.changes` are the result.
"""
