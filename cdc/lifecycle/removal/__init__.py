"""Removes a destination: what it has stored anywhere, in an order that a kill at any moment does not spoil.

:class:`~cdc.lifecycle.removal.removal.Removal` says what is there, what stays and why, and what prevents the removal;
and then removes it. ``configuration`` takes the configuration file aside first, so that neither Airflow nor ``cdc
server`` starts the destination again meanwhile. ``lake`` knows the Delta tables and their names in a catalog, ``dags``
what Airflow remembers.
"""
