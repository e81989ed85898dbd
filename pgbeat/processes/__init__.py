"""The processes of this host: which of them are alive."""
