"""Clients side by side on the cores of one machine. Begin with `pool`."""
