"""Chaos: beats, workers, networks, clocks, a pooler and servers fail at random while they work.

`python -m tests.chaos --minutes 120 --seed 7` does so in rounds; `faults.py` lists what fails. Some
promises of `docs/concepts/guarantees.md` are looked at after each fault. Each round ends in a calm,
in which everything unfinished must finish; then the tables and the tasks' own journal are compared
with all that the page promises. The seed chooses faults and requests; their moments depend on the
machine.
"""
