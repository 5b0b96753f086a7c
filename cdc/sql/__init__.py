"""What the statements in a binary log do: tokens, statements, the clauses of ALTER TABLE.

It imports nothing of Towpath. Everything that reads statements may import it: the decoder, capture, the store's
reader and the Spark jobs. It promises to understand what the servers write into their logs, and to say when it does not.
"""
