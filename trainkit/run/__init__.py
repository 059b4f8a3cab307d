"""The composition root: recipe to plan to dataset, model, optimizer, state; then the loop.

`assemble.py` is the design's picture in code; `directory.py` is where a run lives, `resume.py` how it goes on,
`process.py` the trainer as a process of its own.
"""
