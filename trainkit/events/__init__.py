"""The event log: what happened, appended once, and everything that is computed from it alone."""
