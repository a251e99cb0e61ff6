"""`sparklog top`: a cluster's topics, groups, brokers and open transactions, live in a terminal."""
