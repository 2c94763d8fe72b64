"""Clients side by side on one CUDA GPU, each step a CUDA graph. Begin with `graphs`."""
