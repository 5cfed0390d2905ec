"""Importers of results that others published: one module a format, one registry, told apart by content.

Each states what its format can and cannot support (`protocol.audit.imported.Support`).
May import: `protocol`, its siblings.
"""
