"""What of the store may be removed, and when it must be.

``retain`` removes segments whole, ``removed`` notes up to where, ``counts`` keeps what they held, ``disk`` watches how
full it is. A segment that somebody reads never goes, and nothing unacked unless the configuration says so.
"""
