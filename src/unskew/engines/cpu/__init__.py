"""The engine for CPUs: worker processes, memory they share, and traced steps."""
