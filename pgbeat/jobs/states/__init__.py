"""Changes the states of jobs, and finds what an end means for other jobs."""
