"""The named arrays of a batch: what the encoders here make, and the losses in `tasks/` take.

B sequences, T positions (`data.sequence_length`).

| name      | shape  | dtype                      | meaning                                                     |
|-----------|--------|----------------------------|-------------------------------------------------------------|
| `tokens`  | (B, T) | as stored, uint16 or uint32 | inputs; cast on the device, so that fewer bytes go there    |
| `targets` | (B, T) | as `tokens`                | at each position the token to be predicted, `tokens` one on |
| `weights` | (B, T) | float32                    | how much each target counts; 0 where there is only padding  |

`tokens` and `targets` are overlapping views of one array of (B, T + 1). No array is ever written to again.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Batch: TypeAlias = dict[str, np.ndarray]


def next_token_batch(rows: np.ndarray, weights: np.ndarray) -> Batch:
    """A batch for next-token prediction from `rows`, (B, T + 1), and `weights`, (B, T)."""
    return {"tokens": rows[:, :-1], "targets": rows[:, 1:], "weights": weights}
