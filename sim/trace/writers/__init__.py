"""One writer per format that others read."""
