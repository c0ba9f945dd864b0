"""Check a recorded history against the isolation level of its transactions."""
