"""Stubs generated from ``proto/holdover/v1`` when the project is built; never edited by hand."""
