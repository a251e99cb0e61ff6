"""`sparklog top`: a live view of a cluster's topics, groups, brokers and open transactions in a terminal."""
