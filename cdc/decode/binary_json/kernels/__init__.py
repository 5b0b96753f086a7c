"""The compiled loops over binary JSON: ``constants`` its numbers, ``scalars`` one value, ``walk`` whole documents,
``doubles`` the layout of floating-point numbers, ``expand`` events with partial updates.

Imported by ``cdc.decode.binary_json`` alone. They promise to read nothing outside a value, and to end after a number of
steps that a document's size bounds, whatever the bytes say.
"""
