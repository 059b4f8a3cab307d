"""From tokens to examples to `batch(step)`, a pure function of the seed, the ledger and the step."""
