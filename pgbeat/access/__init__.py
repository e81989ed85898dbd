"""Who may use pgbeat: tokens, and the audit log of changes."""
