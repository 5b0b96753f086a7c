"""The changes of one table as a Spark data source."""
