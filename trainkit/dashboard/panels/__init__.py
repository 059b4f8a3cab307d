"""The parts of the screen. Each has `show(view, …)`, draws from the view alone, and redraws only what has changed."""
