"""Tiering (KIP-405): sealed segments are copied to an object store, and the local copies go earlier than the records.

`policy.py` and `state.py` are the rules, `journal.py` the truth about what is in the store, `layout.py` the objects'
names and bytes, `object_store.py` the way to them through fsspec, `read_cache.py` and `remote_segment.py` how they are
read, `partition_tier.py` what one log knows of its remote part, `tier_run.py` one round of work on one log.
"""
