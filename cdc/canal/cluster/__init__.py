"""Coordination of several servers and clients by ZooKeeper: who runs, who waits, and where clients find whom.

:mod:`.nodes` has the names and contents of nodes, in the tree that Canal's own servers and clients use. :mod:`.member`
is a server's session, and :mod:`.candidacy` its part in the election of one destination. :mod:`.discovery` is for
clients that look for the leader, and :mod:`.client_election` elects one of several clients with the same id. Server and
clients import it; it imports :mod:`cdc.meta` for the connection alone.

It promises that at most one server is the leader of a destination by ZooKeeper's own record; that the epoch of
leaderships only grows; and that a leader which cannot prove that its session is alive stops answering before another
one can be elected.
"""
