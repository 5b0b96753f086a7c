"""Retention: which segments of a store are removed, and when.

``cleaner`` removes whole segments by the user's rules, ``disk`` watches how full the store's disk is. A segment in use
never goes, and one that a subscriber has not acked only if the configuration allows it.

Imported by capture and the commands, which pass in the subscribers; imports reader and formats. Knows no meta.
"""
