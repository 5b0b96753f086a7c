"""What happens before a writer goes on: verify what no checkpoint vouches for, cut off what is not whole.

``recover`` decides, ``mend`` changes files and keeps the evidence, ``damaged`` and ``accept`` are for what the user
gives up. What was acknowledged is never changed: where it is damaged, an error names the segment.
"""
