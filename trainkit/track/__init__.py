"""Aim: a projection of the event log, made in a process of its own. Nothing here imports aim but that process."""
