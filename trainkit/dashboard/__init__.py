"""The terminal dashboard: a projection of the event log. Importing this alone imports no textual."""
