"""`sparklog doctor`: what is wrong with a cluster, a data directory or a configuration, and what to do.

Facts are gathered first (`*_facts`, which ask brokers and look at files), then checks look at the facts. A check is a
pure function of the facts, so that each can be tried with facts that nobody wants to have for real.
"""
