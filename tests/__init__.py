"""pgbeat's tests: real Postgres, real Celery processes, no mocks."""
