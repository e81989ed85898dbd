"""Ends the jobs of dead workers, and jobs that lost their message."""
