"""The tables of a recipe.

| file | tables |
|---|---|
| `adapter.py` | `[adapter]` |
| `average.py` | `[average]` |
| `data.py` | `[data]`, `[data.encoding]` |
| `document.py`, `document_spec.py` | `document = { … }` of a source; what every type of document says about itself |
| `evaluate.py`, `metric.py` | `[evaluate]`, `[[evaluate.metrics]]` |
| `model.py` | `[model]`: the families of `recipe/families/` |
| `optimizer.py` | `[optimizer]`, `[[optimizer.groups]]` |
| `outputs.py` | `[checkpoint]`, `[export]`, `[sample]`, `[statistics]`, `[track]` |
| `schedule.py` | `[schedule]` |
| `schedules.py` | `[schedules]` |
| `source.py` | `[[data.train]]`, `[[data.validation]]` |
| `sweep.py` | `[sweep]` |
| `task.py` | `[task]` |
| `tokenizer.py` | `[tokenizer]` |
| `train.py` | `[train]`, `[precision]`, `[parallel]` |

`[run]` and `[plugins]` are in `recipe/recipe.py`.
"""
