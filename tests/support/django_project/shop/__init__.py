"""Orders, and tasks that ship them."""
