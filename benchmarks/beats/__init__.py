"""The parts of `beat.py`: contenders, what runs in subprocesses, measures, tables."""
