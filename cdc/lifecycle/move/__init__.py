"""Moves a store, and the meta's files with it, to another folder or another machine, and verifies it there.

:class:`~cdc.lifecycle.move.sender.Sender` works where the store is, :class:`~cdc.lifecycle.move.receiver.Receiver`
where it will be. On one machine the sender calls the receiver; on two it reaches it by a command line of the operator,
like ``ssh``, whose standard input and output carry the calls (:mod:`cdc.lifecycle.move.link`).

There is never more than one store that capture may write. ``moving.json`` keeps the copy out of use until it is proved
equal, then ``moved.json`` takes the old one out of use, and only then ``moving.json`` is removed. A kill in between is
made up for by the same command.
"""
