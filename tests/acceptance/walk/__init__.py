"""A random walk: beats, workers and a pooler are killed, frozen and cut off while they work.

`python -m tests.acceptance.walk --minutes 120 --seed 7` walks in rounds. Each round ends in a calm,
in which everything unfinished must finish; then the tables and the tasks' own journal are compared
with what `docs/concepts/guarantees.md` promises.
"""
