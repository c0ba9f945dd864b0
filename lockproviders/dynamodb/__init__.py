"""The DynamoDB locks: the same item under the same conditions as Java Hudi's providers."""
