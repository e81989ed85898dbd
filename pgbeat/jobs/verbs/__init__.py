"""Changes jobs, lanes, templates and workers for people, with a function for each verb."""
