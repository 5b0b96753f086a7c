"""Delta tables: their logs, their creation, and the proof that nothing was replaced."""
