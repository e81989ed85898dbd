"""Jobs: their rows, and every verb that makes, steers, dispatches, rescues or ends them."""
