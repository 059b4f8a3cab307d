"""The step of `step_torch.py` with the loss that transformers' models make themselves, as its Trainer has it.

A contender of `step.py`.
"""

from __future__ import annotations

from functools import partial

from step_torch import prepare
from step_work import serve

if __name__ == "__main__":
    serve(partial(prepare, own_loss=True))
