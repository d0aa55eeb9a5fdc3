"""The functions that lowered text calls, and how they are compiled: arrays, shadow memory, int64 helpers."""
