"""Clients on the machines of a Ray cluster. Begin with `engine`.

engine: what is sent to workers, and what they do.   fleet: the workers, and which call goes to which.
payload: how Python objects and tensors are sent.    connect: how this process joins a cluster.
"""
