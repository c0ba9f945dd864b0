"""From a moment of the timeline to rows: snapshot, view, scan, and what keeps files for them."""
