"""`sparklog doctor`: the faults of a cluster, a data directory or a configuration, and their remedies.

Facts are gathered first (`*_facts`, which ask brokers and read files), then checks look at the facts. A check is a pure
function of the facts, so that a test can try each with the facts of a real fault.
"""
