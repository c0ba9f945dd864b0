"""Many writes in one instant: of the threads of a process, or of the processes of a host."""
