"""Groups: jobs that belong together, and how a group advances when a member ends."""
