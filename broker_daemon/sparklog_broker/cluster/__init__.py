"""A broker as one of several: its place in the cluster, the images it follows, its replicas."""
