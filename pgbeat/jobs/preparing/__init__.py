"""Prepares jobs as people and programs describe them, without writing anything."""
