"""Takes session locks, limits waits for locks, and writes around locked rows."""
