"""Measurements of the commands `bench`, `eval` and `calibrate`: the figures of the README and of docs/evidence.md."""
