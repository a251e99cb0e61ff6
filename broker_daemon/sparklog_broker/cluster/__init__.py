"""A broker in its cluster: its registration, the images that it follows, its replicas."""
