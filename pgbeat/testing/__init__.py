"""What a team's own tests can use: see `pgbeat.testing.pytest_celery`."""
