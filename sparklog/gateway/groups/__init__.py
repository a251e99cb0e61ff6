"""Consumer groups of Kafka's classic protocol, as a pure state machine."""
