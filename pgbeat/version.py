"""The version, for the packages that show it."""

__version__ = "0.1.0"
