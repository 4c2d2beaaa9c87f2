"""One reader per trace format; each returns the ranks of a file."""
