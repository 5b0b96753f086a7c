"""``cdc server``: hands out the batches and bytes of stores on this machine to others, over HTTP or Canal's protocol.

``process`` runs it, ``app`` answers requests, ``operations`` has what a client may call, ``destinations`` what is
served and to whom, ``files`` the bytes of a store, ``locks`` the locks of clients. Of Canal's clients,
``canal_listener`` accepts connections, ``canal_connection`` speaks with one of them, ``canal_clients`` knows the client
ids, and ``canal_cursor`` has the batches of one; :mod:`cdc.canal` makes what is sent. The clients are in
:mod:`cdc.client`, what both share is in :mod:`cdc.wire`. Commands import it; it imports the layers below them. It
promises that a client that dies or is slow holds no lock for longer than half a minute, and that a kill of the server
loses nothing that was answered.
"""
