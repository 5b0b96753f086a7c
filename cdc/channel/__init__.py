"""A channel with transactions on both sides, after Flume's ``MemoryChannel``, for programs that think in events.

``channel`` is the way in, ``queue`` what it holds, ``transaction`` begin, commit, rollback and close. Nothing put is
seen before its commit, nothing taken is gone before its commit. It knows nothing of the relay log.
"""
