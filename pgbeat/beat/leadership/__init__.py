"""Holds the leader's connection, and logs which beat leads."""
