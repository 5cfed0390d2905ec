"""Importers of results that others published."""
