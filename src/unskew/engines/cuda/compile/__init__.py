"""Training steps compiled as a whole, which is what `fast=true` asks for."""
