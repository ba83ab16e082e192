"""Measured figures. `python -m tests.bench [NAME ...]`; each bench prints one JSON line per figure."""
