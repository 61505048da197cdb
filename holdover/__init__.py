"""Holdover: a batch cluster whose finished work outlives its JobManager."""
