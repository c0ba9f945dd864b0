"""The lock in a file of the table's own object store, Java Hudi's file."""
