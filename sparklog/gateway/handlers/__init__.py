"""One handler per API of Kafka."""
