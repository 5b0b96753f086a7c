"""``cdc server``: hands out the batches and bytes of stores on this machine to others, over HTTP.

``process`` runs it, ``app`` answers requests, ``operations`` has what a client may call, ``destinations`` what is
served and to whom, ``files`` the bytes of a store, ``locks`` the locks of clients. The clients are in
:mod:`cdc.client`, what both share is in :mod:`cdc.wire`. Commands import it; it imports the layers below them. It
promises that a client that dies or is slow holds no lock for longer than half a minute, and that a kill of the server
loses nothing that was answered.
"""
