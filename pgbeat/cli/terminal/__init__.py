"""Reads the options that commands share, and prints to the terminal."""
