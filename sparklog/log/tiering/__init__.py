"""Tiering (KIP-405): sealed segments are copied to an object store, and the local files are deleted earlier than the
records.

`policy.py` and `state.py` are the rules, `journal.py` the truth about the objects in the store, `layout.py` the
objects' names and bytes, `object_store.py` the access to them through fsspec, `read_cache.py` and `remote_segment.py`
the reading, `partition_tier.py` one log's knowledge of its remote part, `tier_run.py` one round of work on one log.
"""
