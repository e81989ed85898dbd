"""Groups: jobs that belong together, and how a group goes on when a member ends."""
