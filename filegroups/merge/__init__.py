"""How several versions of a record become one."""
