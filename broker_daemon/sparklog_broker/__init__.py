"""The sparklog broker: an asyncio shell around the rules of `sparklog`. It passes bytes, jobs and timers to them."""
