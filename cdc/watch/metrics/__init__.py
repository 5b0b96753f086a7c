"""Metrics in the form of Prometheus: what a capture serves, and what runs push.

Imported by the commands and by ``cdc.airflow``; imports ``config``, ``meta``, ``store``, ``batches`` and ``capture``,
and nothing imports it on the way of the data. ``prometheus_client`` is imported only where metrics are wanted.

- :mod:`.catalogue` names every metric. The names are an interface: dashboards and alerts rely on them.
- :mod:`.serve` serves those of a capture if they are wanted: :mod:`.capture` collects them and decides whether the
  capture is healthy, and :mod:`.http` answers.
- :mod:`.push` sends those of a run to a Pushgateway. It promises that no run fails because of it.
"""
