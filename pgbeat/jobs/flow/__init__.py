"""Moves jobs on when a state changes: publishes, dispatches and unblocks them."""
