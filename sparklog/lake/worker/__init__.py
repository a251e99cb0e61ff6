"""The lake worker: reads topics with the native client and writes their records to their Delta tables.

Mode append adds every record as a row; mode upsert keeps the newest row of each key. `verify` checks a table.
"""
