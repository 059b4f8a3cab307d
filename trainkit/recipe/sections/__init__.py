"""The tables of a recipe: one file per table."""
