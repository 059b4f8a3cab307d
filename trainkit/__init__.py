"""trainkit: write a TOML recipe, train it, watch it, resume it."""

__version__ = "0.1.0"
