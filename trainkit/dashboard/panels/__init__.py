"""The parts of the screen. Each draws from the view alone, and redraws only what has changed."""
