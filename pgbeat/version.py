"""The version, at the root: the command line shows it before it imports any package of pgbeat's."""

__version__ = "0.1.0"
