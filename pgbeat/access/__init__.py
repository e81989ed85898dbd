"""Access to pgbeat: actors, tokens, and the audit log of changes."""
