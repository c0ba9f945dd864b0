"""The DynamoDB locks: the same item, taken by the same conditions, as Java Hudi's providers."""
