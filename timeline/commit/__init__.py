"""From the begin of an instant to its slot: what is judged, in which order, and what follows."""
