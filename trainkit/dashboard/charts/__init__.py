"""Charts in a terminal: series to cells, axes, what is shown of them, and the keys for it."""
