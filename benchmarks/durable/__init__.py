"""Programs with durable steps, of pgbeat and of its peers, for `steps.py`."""
