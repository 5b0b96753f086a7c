"""Pushes the changes of a destination to Kafka: Canal's MQ mode.

A :class:`~.pusher.Pusher` takes batches as a subscriber, turns their rows into messages by compiled kernels, sends
them, waits until the broker has acknowledged all, and acks the batch. ``cdc push`` runs one; a program may embed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["PushStats", "Pusher"]

if TYPE_CHECKING:
    from cdc.canal.mq.pusher import Pusher, PushStats


def __getattr__(name: str) -> object:
    if name in __all__:
        from cdc.canal.mq import pusher

        return getattr(pusher, name)
    raise AttributeError(name)
