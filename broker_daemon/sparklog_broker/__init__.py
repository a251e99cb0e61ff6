"""The sparklog broker: an asyncio shell around the core. It moves bytes, threads and timers, and owns no rules."""
