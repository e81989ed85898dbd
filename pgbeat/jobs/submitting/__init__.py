"""Provides the functions by which programs submit jobs."""
