"""Claims and acknowledges messages over a consumer's connection."""
