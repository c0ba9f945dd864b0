"""The demonstration: two PySpark writers and a cleaning worker on one table of real flights."""
