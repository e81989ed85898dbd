"""The parts of `results.py`: the app, what runs in subprocesses, contenders, measures."""
