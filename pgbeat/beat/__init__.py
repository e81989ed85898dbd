"""The beat process: leads, evaluates what is due, enqueues it, and maintains the database."""
