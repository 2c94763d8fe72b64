"""What runs clients side by side on a CUDA GPU."""
