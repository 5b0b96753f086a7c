"""The changes of one source table as a Spark data source, and its columns.

``data_source`` decodes in executors, ``input_splits`` says what each task reads, ``columns`` and ``column_types`` what
the columns become in Delta under the user's policies, ``null_dates`` counts dates that became null. Imported by
``delta`` and ``apply``. Promises each row of the range exactly once, or an error.
"""
