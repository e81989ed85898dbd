"""Checks that a beat has what it needs: the server, its tasks, its policies."""
