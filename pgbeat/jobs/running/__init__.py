"""Records executions and workers, and defines the exceptions that a running task may raise."""
