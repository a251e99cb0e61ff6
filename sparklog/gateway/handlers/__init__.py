"""The handlers of Kafka's APIs, one function for each API."""
