"""What the statements in a binary log do: tokens, statements, the clauses of ALTER TABLE."""
