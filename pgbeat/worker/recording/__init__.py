"""Records executions in a thread of the worker's process, and keeps the worker alive."""
