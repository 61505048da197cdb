"""Benchmarks: `python -m benchmarks [NAME ...]`, or `make bench`.

Each measures against a baseline in the same run, in turns, and reports medians and their ratio, so
that a slow or busy machine shows in both. docs/benchmarks.md has results and how to read them.
"""
