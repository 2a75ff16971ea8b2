"""Where the figures of a run go: its metrics file, and the trackers that are asked for."""
