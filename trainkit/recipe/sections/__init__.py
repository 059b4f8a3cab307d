"""The tables of a recipe.

| file | tables |
|---|---|
| `adapter.py` | `[adapter]` |
| `average.py` | `[average]` |
| `data.py` | `[data]`, `[data.encoding]` |
| `document.py`, `document_spec.py` | `document = { … }` of a source; what every type of document says about itself |
| `evaluate.py`, `metric.py` | `[evaluate]`, `[[evaluate.metrics]]` |
| `guard.py` | `[guard]` |
| `model.py` | `[model]`: the families of `recipe/families/` |
| `mup.py` | `[mup]` |
| `outputs.py` | `[checkpoint]`, `[export]`, `[sample]`, `[statistics]`, `[track]` |
| `run.py` | `[run]`, `[plugins]` |
| `schedule.py`, `schedule_shapes.py` | `[schedule]` |
| `schedules.py` | `[schedules]` |
| `source.py` | `[[data.train]]`, `[[data.validation]]` |
| `sweep.py` | `[sweep]` |
| `task.py` | `[task]` |
| `tokenizer.py` | `[tokenizer]` |
| `train.py` | `[train]`, `[precision]`, `[parallel]` |

`[optimizer]` is in `recipe/optimizers/`. What all types of a task, metric, document or schedule have in common is
in the file whose name ends with `_spec`.
"""
