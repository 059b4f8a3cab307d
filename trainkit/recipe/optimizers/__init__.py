"""The optimizers: the spec of each, with its keys and the state it keeps; the mathematics is in `optim/`."""
