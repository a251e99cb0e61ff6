"""What all clients need: connections, what is known of the cluster, deadlines and retries."""
