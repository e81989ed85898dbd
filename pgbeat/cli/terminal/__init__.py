"""Reads what every command takes from the terminal, and prints to it."""
