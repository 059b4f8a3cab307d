"""Composition, and the life of an attempt: recipe to plan to dataset, model, optimizer, state; then the loop.

`setup.py` reads in that order; `prepare.py` plans, compiles and restores, and `job.py` assembles what the loop works
with. `attempt.py` is one process's part of a run, in this process or in the background; `resume.py` checks that a run
can continue.
"""
