"""Decides how a task's run ended, and writes its end."""
