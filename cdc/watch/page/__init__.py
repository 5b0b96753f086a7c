"""Pages for people: all destinations of a folder, and each one by itself, as HTML without anything from elsewhere.

``board`` collects the status of many destinations at once, so that one that hangs or fails hides no other. ``render``
makes pages of it. Who may see which destination, and where pages are served, is up to the caller: today the plugin of
Airflow (:mod:`cdc.airflow.plugin`). Imports neither Airflow nor Spark.
"""
