"""Tools for tests: a simulation of processes, disks, networks, ZooKeeper and object stores."""
