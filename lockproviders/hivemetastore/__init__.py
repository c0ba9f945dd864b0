"""The Hive Metastore's lock, by its Thrift service or by its database."""
