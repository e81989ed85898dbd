"""Other libraries that pgbeat works with where they are in use."""
