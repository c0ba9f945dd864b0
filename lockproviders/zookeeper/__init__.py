"""The ZooKeeper locks: the same nodes, in the same queue, as Java Hudi's providers."""
