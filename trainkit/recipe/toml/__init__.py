"""Recipes as TOML: loading, positions of keys, diagnosis, suggestions, schema, writing, plugins."""
