"""The gateway's side towards its broker: connections and known topics."""
