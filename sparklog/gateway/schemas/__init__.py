"""The schema registry: Confluent's REST interface, in the gateway's process."""
