"""Webhooks: their rows, deliveries, signatures and HTTP."""
