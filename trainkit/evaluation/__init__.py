"""Evaluation: the loss and the metrics of a model over whole sets, as the log and `results/` record them.

`evaluator.py` evaluates a state on sets: the training loop calls it, and so does `evaluate_run.py`, which is what
`trainkit eval` does with a checkpoint. `results.py` writes metrics and predictions as files.
`harness.py` evaluates on tasks of lm-eval, which ask `harness_model.py`; `likelihoods.py` is how it scores texts, and
`generation_kwargs.py` says how a task wants them generated.
"""
