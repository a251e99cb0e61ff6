"""The common base of all clients: connections, knowledge of the cluster, deadlines and retries."""
