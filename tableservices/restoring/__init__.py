"""Going back: savepoints that keep a state, restores to it, the rollback of one instant."""
