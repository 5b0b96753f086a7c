"""The changes of one source table as DataFrames, and its columns.

``input_splits`` says what each task reads, ``split_reader`` decodes it, ``changes`` makes a DataFrame of it, and
``key_plan`` finds the rows of a batch that win before any is read. ``data_source`` gives the same rows to other jobs.
``columns`` and ``column_types`` say what the columns become in Delta under the user's policies, ``null_dates`` counts
dates that became null. ``row_keys`` reads keys as users write them. Imported by ``delta`` and ``apply``. Promises each
row of the range exactly once, or an error.
"""
