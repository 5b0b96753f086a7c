"""The files of a store: their names, layouts and versions. Imports nothing else of the store."""
