"""Task results on Postgres: `result_backend = "pgbeat+postgresql://…"`."""
