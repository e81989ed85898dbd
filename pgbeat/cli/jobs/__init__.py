"""The commands on jobs, groups, lanes and templates."""
