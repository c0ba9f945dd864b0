"""Checks of a recorded history against the isolation that was promised."""
