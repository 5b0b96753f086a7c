"""The operator's views of destinations: the status, metrics, alarms, pages, and the changes as they come.

Imports the rooms below, which hold what is shown. :mod:`.status` collects one document, from which alarms and pages are
made, so that they cannot disagree.
"""
