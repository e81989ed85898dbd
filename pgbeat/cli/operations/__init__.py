"""The commands of operators: setup, health, load, webhooks, tokens and the web side."""
