"""What becomes of a whole destination: its store is moved, or everything that it has stored is removed.

``move`` brings a store to another folder or machine; ``removal`` removes a destination. Both begin with ``obstacles``:
whoever still works on the destination. ``folders`` knows the files of a store and a meta.

Only :mod:`cdc.cli` imports it.
"""
