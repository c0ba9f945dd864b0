"""Go back: savepoints keep a state, restores return to it, a rollback ends one named instant."""
