"""`sparklog doctor`: finds faults of a cluster, a data directory or a configuration, and their remedies.

The modules `*_facts` first collect facts from brokers and files. The modules `check_*` then examine the facts. A check
is a pure function of the facts, so that a test can run it with the facts of a real fault.
"""
