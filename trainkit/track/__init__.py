"""Trackers: projections of the event log, each made in a process of its own. Nothing here imports one but there."""
