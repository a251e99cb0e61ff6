"""Tiering (KIP-405): sealed segments are copied to an object store, and their local files are deleted before the
records are.

`model/tiering_policy.py` and `state.py` have the rules, `journal.py` the record of the copies in the store, `layout.py`
the objects' names and bytes, `object_store.py` the access to the objects through fsspec, `read_cache.py` and
`remote_segment.py` the reading, `partition_tier.py` the state of one log's remote part, and
`housekeeping/tier_run.py` one round of work on one log.
"""
