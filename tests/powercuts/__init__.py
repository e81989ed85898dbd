"""Cuts the power of a server under load: `python -m tests.powercuts pgbeat`.

The server is a virtual machine, whose disk forgets what was not flushed when the power is cut.
Publishers and a worker run outside it.
"""
