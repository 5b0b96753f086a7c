"""Recovery: verifies and repairs a store before a writer goes on, and salvages a damaged one.

``recover`` runs each time a store is opened for writing. It never changes transactions that were acknowledged: if they
are damaged, its error names the segment. ``salvage`` gives them up once an operator has accepted the loss.

Imported by the writer and by ``cdc inspect``; imports the formats.
"""
