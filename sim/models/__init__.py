"""Pure models: compute time, memory, collective algorithms. No clock, no state."""
