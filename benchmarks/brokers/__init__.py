"""The parts of `transport.py`: contenders, the app and what runs in subprocesses, measures."""
