"""The Kafka gateway: a process that speaks Kafka's protocol to clients and sparklog's protocol to its broker."""
