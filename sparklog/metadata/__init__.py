"""The stores of a cluster's metadata: ZooKeeper nodes, or a local file of a single broker."""
