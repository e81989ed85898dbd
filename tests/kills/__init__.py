"""Kills processes of tasks with steps at random statements: `python -m tests.kills --runs 1000`.

Each run is a member of a chord. It has ten steps: three, five that write in a session, a wait and a
sleep. Its process may die before and after each statement that it sends, and at each commit; now
and then a whole worker dies. What the tasks call and get is in a journal outside the database.
"""
