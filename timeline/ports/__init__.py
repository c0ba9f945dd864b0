"""The few things the engine needs from the machine; nothing else may touch the world."""
