"""A client of Kafka's protocol, for the source of a mirror."""
