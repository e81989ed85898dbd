"""Connects pgbeat with other libraries, if they are in use."""
