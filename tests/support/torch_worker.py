"""The reference: transformers' models on torch, asked through a pipe by `tests/reference.py`.

It is run by a Python of its own, which has torch and transformers but nothing of trainkit. A line of JSON comes in, one
goes out; arrays lie in a file beside the model.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity_rule
import torch
import torch_answers
import torch_optimizers
import torch_rewards
import torch_seq2seq
import transformers
from safetensors.numpy import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WEIGHTS = "model.safetensors"
#: Of a preference.
SIDES = ("chosen", "rejected")


def versions(request: dict[str, Any]) -> dict[str, Any]:
    return {"transformers": transformers.__version__, "torch": torch.__version__}


def has(request: dict[str, Any]) -> dict[str, Any]:
    return {"found": importlib.util.find_spec(request["package"]) is not None}


def make(request: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of this configuration, its weights by `parity_rule`, with what the model makes of tokens."""
    seed, directory = request["seed"], Path(request["directory"])
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**request["config"])).save_pretrained(directory)
    shapes = {name: list(tensor.shape) for name, tensor in load_file(directory / WEIGHTS).items()}
    weights = {name: parity_rule.weight(seed, name, shape) for name, shape in shapes.items()}
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    np.savez(directory / "reference.npz", **look(loaded(directory), request))
    return {"tensors": shapes}


def loaded(directory: Path) -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def look(model: Any, request: dict[str, Any]) -> dict[str, np.ndarray]:
    """What the model makes of tokens, of the first row also where it stands late, or padded at either end."""
    tokens = parity_rule.tokens(request["seed"], request["size"], model.config.vocab_size)
    ids, padded = torch.tensor(tokens), request["padded"]
    left, right = torch.ones_like(ids), torch.ones_like(ids)
    left[0, :padded] = 0
    right[0, -padded:] = 0
    counted = (left.cumsum(-1) - 1).masked_fill(left == 0, 0)  # as `generate` counts them
    late = torch.arange(request["late"], request["late"] + ids.shape[1])[None]
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        found = {
            "late_logits": model(input_ids=ids[:1], position_ids=late).logits[0],
            "right_padded_logits": model(input_ids=ids, attention_mask=right).logits[0, :-padded],
            "left_padded_logits": model(input_ids=ids, attention_mask=left, position_ids=counted).logits[0, padded:],
            "greedy": continued(model, ids, left, request["greedy"]),
        }
    logits = model(input_ids=ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
    loss.backward()
    found |= {"logits": logits.detach(), "loss": loss.detach()}
    return {"tokens": tokens, **{name: value.numpy() for name, value in found.items()}, **gradients(model)}


def make_encoder(request: dict[str, Any]) -> dict[str, Any]:
    """A masked language model of this configuration, and what it makes of texts, the first padded at the end and the
    second at the beginning; where a model tells the texts of a pair apart, each is of as many as it has types.

    `tokens` and `mask` are what it was given; logits are those of real tokens."""
    seed, directory, padded = request["seed"], Path(request["directory"]), request["padded"]
    AutoModelForMaskedLM.from_config(AutoConfig.for_model(**request["config"])).save_pretrained(directory)
    shapes = {name: list(tensor.shape) for name, tensor in load_file(directory / WEIGHTS).items()}
    weights = {name: parity_rule.weight(seed, name, shape) for name, shape in shapes.items()}
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    model = prepared(AutoModelForMaskedLM, directory, request)
    tokens = parity_rule.tokens(seed, request["size"], model.config.vocab_size)
    mask = np.ones_like(tokens)
    mask[0, -padded:] = mask[1, :padded] = 0
    tokens[mask == 0] = model.config.pad_token_id
    labels = np.where((np.arange(tokens.shape[1]) % 3 == 0) & (mask > 0), tokens, -100)
    kept = {"tokens": tokens, "mask": mask}
    found = model(labels=torch.tensor(labels), **read_by(model, kept))
    found.loss.backward()
    arrays = {"logits": found.logits.detach().numpy()[mask > 0], "loss": found.loss.detach().numpy()}
    np.savez(directory / "reference.npz", **kept, **arrays, **gradients(model))
    return {"tensors": shapes}


def read_by(model: Any, kept: Any) -> dict[str, Any]:
    """The arguments by which an encoder reads texts."""
    given = {"input_ids": torch.tensor(kept["tokens"]), "attention_mask": torch.tensor(kept["mask"])}
    if has_types(model):
        length, types = kept["tokens"].shape[1], model.config.type_vocab_size
        given["token_type_ids"] = (torch.arange(length) * types // length).expand(kept["tokens"].shape)
    return given


def read_again(request: dict[str, Any]) -> dict[str, Any]:
    """Whether the model in a directory gives the logits, to the bit, that `make_encoder`, or `make_encoder_decoder`,
    kept."""
    kept = np.load(Path(request["made"]) / "reference.npz")
    targets = "labels" in kept
    kind = AutoModelForSeq2SeqLM if targets else AutoModelForMaskedLM
    model, info = kind.from_pretrained(request["directory"], output_loading_info=True)
    assert not any(info.values()), info
    if targets:
        asked = {"input_ids": kept["sources"], "attention_mask": kept["mask"], "labels": kept["labels"]}
        given, counted = {name: torch.tensor(array) for name, array in asked.items()}, kept["labels"] >= 0
    else:
        given, counted = read_by(model, kept), kept["mask"] > 0
    logits = model.eval()(**given).logits.detach().numpy()
    return {"same": bool((logits[counted] == kept["logits"]).all())}


def prepared(kind: Any, directory: Path, request: dict[str, Any]) -> Any:
    """The model in a directory; with `thinned` in training, where dropout multiplies with the share that it keeps."""
    if not request.get("thinned"):
        return kind.from_pretrained(directory, dtype=torch.float32).eval()
    model = kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.forward = functools.partial(thin, p=module.p)
    torch.nn.functional.dropout = thin
    return model


def thin(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return x * (1 - p) if training else x


def make_encoder_decoder(request: dict[str, Any]) -> dict[str, Any]:
    """An encoder-decoder of this configuration, and what it makes of sources, the first padded at the end and the
    second at the beginning, and of targets, the first padded. `labels` are the targets, -100 in their padding; logits
    are those of real targets."""
    seed, directory, padded = request["seed"], Path(request["directory"]), request["padded"]
    AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(**request["config"])).save_pretrained(directory)
    shapes = {name: list(tensor.shape) for name, tensor in load_file(directory / WEIGHTS).items()}
    if request["config"].get("tie_word_embeddings") is False and "shared.weight" in shapes:
        shapes["lm_head.weight"] = shapes["shared.weight"]  # a T5 that is made is tied whatever its config says
    weights = {name: parity_rule.weight(seed, name, shape) for name, shape in shapes.items()}
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    model = prepared(AutoModelForSeq2SeqLM, directory, request)
    (rows, length), pad = request["size"], model.config.pad_token_id
    sources, targets = parity_rule.tokens(seed, (2, rows, length), model.config.vocab_size)
    mask, labels = np.ones_like(sources), targets.copy()
    mask[0, -padded:] = mask[1, :padded] = 0
    sources[mask == 0], labels[0, 1 - padded :] = pad, -100
    found = model(input_ids=torch.tensor(sources), attention_mask=torch.tensor(mask), labels=torch.tensor(labels))
    found.loss.backward()
    arrays = {"logits": found.logits.detach().numpy()[labels >= 0], "loss": found.loss.detach().numpy()}
    np.savez(directory / "reference.npz", sources=sources, mask=mask, labels=labels, **arrays, **gradients(model))
    return {"tensors": shapes}


def has_types(model: Any) -> bool:
    """Whether a model tells the texts of a pair apart."""
    return getattr(model.config, "type_vocab_size", 0) > 1


HEADS = {"sequence": AutoModelForSequenceClassification, "token": AutoModelForTokenClassification}


def make_classifier(request: dict[str, Any]) -> dict[str, Any]:
    """A model of this configuration with a `head` of classes, and what it makes of texts, the first padded at the end.

    With `pairs` the second half of each is a second text. `labels` are of each text or token; -1 for none, and numbers
    or several classes where `problem` says so. `weights` are those of a loss of torch, in place of the model's own.
    """
    seed, directory, kind = request["seed"], Path(request["directory"]), HEADS[request["head"]]
    problem = {"problem_type": request["problem"]} if "problem" in request else {}
    config = AutoConfig.for_model(**request["config"], num_labels=request["classes"], **problem)
    kind.from_config(config).save_pretrained(directory)
    shapes = {name: list(tensor.shape) for name, tensor in load_file(directory / WEIGHTS).items()}
    weights = {name: parity_rule.weight(seed, name, shape) for name, shape in shapes.items()}
    save_file(weights, directory / WEIGHTS, metadata={"format": "pt"})
    model = prepared(kind, directory, request)
    tokens = parity_rule.tokens(seed, request["size"], config.vocab_size)
    tokens[0, -request["padded"] :] = config.pad_token_id
    if config.is_encoder_decoder:  # which finds the end of a text by this token
        tokens[0, -request["padded"] - 1] = tokens[1:, -1] = config.eos_token_id
    ids = torch.tensor(tokens)
    mask = torch.ones_like(ids)
    mask[0, -request["padded"] :] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if request["pairs"] and has_types(model):
        given["token_type_ids"] = (torch.arange(ids.shape[1]) >= ids.shape[1] // 2).long().expand(ids.shape)
    labels = torch.tensor(request["labels"])
    if not labels.is_floating_point():
        labels = torch.where(labels < 0, -100, labels)
    found = model(**given, labels=labels)
    loss = weighted(found.logits, labels, **request["weights"]) if request.get("weights") else found.loss
    loss.backward()
    arrays = {"logits": found.logits.detach().numpy(), "loss": loss.detach().numpy(), "tokens": tokens}
    np.savez(directory / "reference.npz", **arrays, **gradients(model))
    return {"tensors": shapes}


def weighted(logits: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0, **weights: list[float]) -> Any:
    """The loss of classes by torch, with `weight` of classes and `pos_weight`."""
    tensors = {name: torch.tensor(numbers) for name, numbers in weights.items()}
    if labels.is_floating_point():
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, **tensors)
    return torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing, **tensors)


def rescore(request: dict[str, Any]) -> dict[str, Any]:
    """The scores and the loss of texts by a checkpoint as it loads, the first text padded at the end."""
    model = HEADS["sequence"].from_pretrained(request["directory"], dtype=torch.float32).eval()
    ids = torch.tensor(request["tokens"])
    mask = torch.ones_like(ids)
    mask[0, -request["padded"] :] = 0
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask, labels=torch.tensor(request["labels"]))
    return {"logits": found.logits.tolist(), "loss": found.loss.item(), "id2label": model.config.id2label}


def metrics(request: dict[str, Any]) -> dict[str, Any]:
    """The metrics of predictions by scikit-learn, and ranks by scipy; the last class is in no set."""
    from scipy.stats import spearmanr
    from sklearn import metrics as theirs

    sets, classes, numbers = (
        {name: np.array(array) for name, array in request[group].items()} for group in ("sets", "classes", "numbers")
    )
    found: dict[str, float] = {}
    true, predicted = sets["labels"], sets["predicted_labels"]
    for average in ("macro", "micro", "weighted", "samples"):
        found[f"sets/f1_{average}"] = theirs.f1_score(true, predicted, average=average, zero_division=0)
    for name, of in (("precision", theirs.precision_score), ("recall", theirs.recall_score)):
        found[f"sets/{name}"] = of(true, predicted, average="macro", zero_division=0)
        found[f"sets/{name}_samples"] = of(true, predicted, average="samples", zero_division=0)
        each = of(true, predicted, average=None, zero_division=0)
        found |= {f"sets/{name}/{letter}": score for letter, score in zip("abcd", each, strict=True)}
    found["sets/subset_accuracy"] = theirs.accuracy_score(true, predicted)
    found["sets/hamming_loss"] = theirs.hamming_loss(true, predicted)
    for average in ("macro", "weighted"):
        found[f"sets/auroc_{average}"] = theirs.roc_auc_score(true[:, :3], sets["scores"][:, :3], average=average)
    found["sets/auroc_micro"] = theirs.roc_auc_score(true, sets["scores"], average="micro")
    scores = classes["scores"][:, :3]
    chances = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    for average, name in (("macro", "auroc"), ("weighted", "auroc_weighted")):
        of_classes = theirs.roc_auc_score(classes["label"], chances.round(12), average=average, multi_class="ovr")
        found[f"classes/{name}"] = of_classes
    found["classes/top_2_accuracy"] = theirs.top_k_accuracy_score(classes["label"], distinct(scores), k=2)
    true, predicted = numbers["target"], numbers["predicted"]
    found["numbers/mean_squared_error"] = theirs.mean_squared_error(true, predicted)
    found["numbers/mean_absolute_error"] = theirs.mean_absolute_error(true, predicted)
    found["numbers/r_squared"] = theirs.r2_score(true, predicted)
    for column, letter in enumerate("abc"):
        found[f"numbers/spearman/{letter}"] = spearmanr(true[:, column], predicted[:, column]).statistic
    return {"found": {name: float(value) for name, value in found.items()}}


def entities(request: dict[str, Any]) -> dict[str, Any]:
    """The F1 of entities by seqeval."""
    from seqeval.metrics import classification_report

    found = classification_report(request["label"], request["predicted"], output_dict=True)
    return {"found": {name: float(scores["f1-score"]) for name, scores in found.items()}}


def distinct(scores: np.ndarray) -> np.ndarray:
    """Scores of which none are equal: of equal ones the class with the smaller number comes first."""
    return scores - np.arange(scores.shape[1]) * 1e-6


def classify(request: dict[str, Any]) -> dict[str, Any]:
    """What the tokenizer and the model in a directory make of texts, or pairs, in one batch: scores and names."""
    directory = Path(request["directory"])
    model = HEADS[request["head"]].from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    texts = [text if isinstance(text, str) else tuple(text) for text in request["texts"]]
    given = tokenizer(texts, return_tensors="pt", padding=len(texts) > 1)
    if not has_types(model):
        given.pop("token_type_ids", None)
    scores = model(**given).logits.detach()
    names = [model.config.id2label[number] for number in range(scores.shape[-1])]
    types = given.get("token_type_ids", torch.zeros_like(given["input_ids"])).tolist()
    return {"scores": scores.tolist(), "names": names, "ids": given["input_ids"].tolist(), "types": types}


def smoothed(request: dict[str, Any]) -> dict[str, Any]:
    """The gradient of transformers' smoothed loss with a z-loss, of the model in a directory; -100 are no labels."""
    from transformers.trainer_pt_utils import LabelSmoother

    directory = Path(request["directory"])
    model, labels = loaded(directory), torch.tensor(request["labels"])
    found = model(input_ids=torch.tensor(request["tokens"]))
    smoothing = LabelSmoother(epsilon=request["label_smoothing"])(found, labels, shift_labels=True)
    divisors = found.logits[:, :-1].logsumexp(-1)[labels[:, 1:] >= 0]
    (smoothing + request["z_loss"] * divisors.square().mean()).backward()
    np.savez(directory / "smoothed.npz", **gradients(model))
    return {}


def embed(request: dict[str, Any]) -> dict[str, Any]:
    """The mean of the last hidden states of each text, by the tokenizer and the bare model in a directory; or by the
    masked language model `base` with the adapter in the directory."""
    directory = Path(request["directory"])
    if "base" in request:
        from peft import PeftModel

        base = AutoModelForMaskedLM.from_pretrained(request["base"], dtype=torch.float32)
        model = PeftModel.from_pretrained(base, directory).eval().base_model.model.base_model
    else:
        model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    given = tokenizer(request["texts"], return_tensors="pt", padding=True)
    hidden = model(**given).last_hidden_state.detach()
    there = given["attention_mask"][..., None]
    vectors, filled = (hidden * there).sum(1) / there.sum(1), given["attention_mask"].sum(1)
    return {"vectors": vectors.tolist(), "ids": given["input_ids"].tolist(), "filled": filled.tolist()}


def pairs(request: dict[str, Any]) -> dict[str, Any]:
    """What trl's DPO makes of rows of conversations: the ids of both sequences, and where the answers begin."""
    from datasets import Dataset
    from trl.trainer.dpo_trainer import DPOTrainer

    tokenizer = PreTrainedTokenizerFast.from_pretrained(request["directory"])
    settings = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    trainer = SimpleNamespace(_tokenizer=tokenizer)
    made = DPOTrainer._prepare_dataset(trainer, Dataset.from_list(request["rows"]), tokenizer, settings, "train")
    return {
        "found": [
            {"begin": len(row["prompt_ids"]), "ids": [row["prompt_ids"] + row[f"{side}_ids"] for side in SIDES]}
            for row in made
        ]
    }


def prefer(request: dict[str, Any]) -> dict[str, Any]:
    """What the trainers of trl make of pairs, (pairs, 2, tokens), of which `filled` are no padding and those from
    `prompts` on are answers: the loss of each pair, and the gradient of their mean.

    Only the trainers' methods are called, with a stand-in for the trainer that holds its settings.
    """
    import trl
    from trl.experimental.cpo import CPOTrainer
    from trl.experimental.orpo import ORPOTrainer

    settings, directory = request["settings"], Path(request["directory"])
    model = loaded(directory)
    ids, filled = torch.tensor(request["tokens"]), torch.tensor(request["filled"])
    place = torch.arange(ids.shape[-1])
    there = place < filled[..., None]
    answers = there & (place >= torch.tensor(request["prompts"])[:, None, None])

    class Accelerator:
        device = torch.device("cpu")
        gather = gather_for_metrics = staticmethod(lambda value: value)

    names = {"dpo": "sigmoid", "robust": "robust", "ipo": "ipo"}

    def dpo(pair: int) -> Any:
        from trl.trainer.dpo_trainer import DPOTrainer

        trainer = SimpleNamespace(
            accelerator=Accelerator(),
            model=model,
            aux_loss_enabled=False,
            ld_alpha=None,
            precompute_ref_logps=True,
            f_divergence_type="reverse_kl",
            loss_types=["sigmoid_norm" if settings.get("per_token") else names[settings["loss"]]],
            loss_weights=[1.0],
            beta=settings["beta"],
            label_smoothing=settings.get("label_smoothing", 0.0),
            use_weighting=False,
            _metrics=collections.defaultdict(lambda: collections.defaultdict(list)),
            _total_train_tokens=0,
            _tp_size=1,
        )
        reference = torch.tensor(request["reference"])[pair]
        inputs = {
            "input_ids": ids[pair],
            "attention_mask": there[pair].long(),
            "completion_mask": answers[pair].long(),
            "ref_chosen_logps": reference[:1],
            "ref_rejected_logps": reference[1:],
        }
        return DPOTrainer._compute_loss(trainer, torch_rewards.Fused(model), inputs, False)

    def without_reference(pair: int) -> Any:
        kind = ORPOTrainer if settings["loss"] == "orpo" else CPOTrainer
        trainer = SimpleNamespace(
            accelerator=Accelerator(),
            beta=settings["beta"],
            alpha=0.0,
            label_smoothing=settings.get("label_smoothing", 0.0),
            simpo_gamma=settings.get("margin", 0.0),
            loss_type="simpo" if settings["loss"] == "simpo" else "sigmoid",
        )
        logits = model(input_ids=ids[pair], attention_mask=there[pair].long()).logits
        labels = torch.where(answers[pair], ids[pair], -100)
        found = kind.get_batch_logps(logits, labels, average_log_prob=settings["loss"] in ("orpo", "simpo"))
        if settings["loss"] == "orpo":
            preference = -ORPOTrainer.odds_ratio_loss(trainer, found[:1], found[1:])[0].mean()
        else:
            preference = CPOTrainer.cpo_loss(trainer, found[:1], found[1:])[0].mean()
        # trl's ORPO: "over the full prompt and response"; its CPO: over the response
        learned = torch.where(there[pair], ids[pair], -100) if settings.get("likelihood_of_prompt") else labels
        chosen = torch.nn.functional.cross_entropy(logits[0, :-1], learned[0, 1:])
        return preference + settings.get("likelihood", 0.0) * chosen

    one = dpo if settings["loss"] in names else without_reference
    losses = torch.stack([one(pair) for pair in range(len(ids))])
    losses.mean().backward()
    np.savez(directory / "preferred.npz", losses=losses.detach().numpy(), **gradients(model))
    return {"trl": trl.__version__}


def continued(model: Any, ids: Any, mask: Any, count: int) -> Any:
    """The likeliest tokens after each row."""
    answer = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=count, pad_token_id=0)
    return answer[:, ids.shape[1] :]


def gradients(model: Any) -> dict[str, np.ndarray]:
    """By the names of the checkpoint's tensors, which are not those of torch's: saved as if they were the weights."""
    with torch.no_grad(), tempfile.TemporaryDirectory() as directory:
        for parameter in model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        for buffer in model.buffers():
            buffer.zero_()
        model.save_pretrained(directory)
        return {f"gradient/{name}": numbers for name, numbers in load_file(Path(directory) / WEIGHTS).items()}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """How the model in a directory goes on greedily with each prompt: its tokens without the one that ends, its text.

    A prompt is a text, or the messages of a conversation, which the tokenizer's template writes. Tokenizer, dtype and
    end tokens are those that the directory says; no code of its own is run.
    """
    tokenizer = AutoTokenizer.from_pretrained(request["directory"])
    model, info = AutoModelForCausalLM.from_pretrained(request["directory"], output_loading_info=True)
    assert not any(info.values()), info
    answers = []
    for prompt in request["prompts"]:
        if isinstance(prompt, str):
            given = tokenizer(prompt, return_tensors="pt")
        else:
            given = tokenizer.apply_chat_template(
                prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        ids, mask = given["input_ids"], given["attention_mask"]
        found = continued(model.eval(), ids, mask, request["tokens"])[0].tolist()
        ended = found[-1] in np.atleast_1d(model.generation_config.eos_token_id).tolist()
        said = found[:-1] if ended else found
        answers.append({"prompt": ids[0].tolist(), "ids": said, "text": tokenizer.decode(said), "ended": ended})
    return {"answers": answers, "kind": type(model).__name__, "dtype": str(model.dtype)}


def keys(request: dict[str, Any]) -> dict[str, Any]:
    """The keys that each family's config class has, and their defaults."""

    def fields(config: Any) -> dict[str, Any]:
        return {field.name: field.default for field in dataclasses.fields(config)}

    families = {name: fields(CONFIG_MAPPING[name]) for name in request["families"]}
    if "mpt" in families:
        families["mpt.attn_config"] = fields(CONFIG_MAPPING["mpt"].sub_configs["attn_config"])
    return {"keys": families}


def inert(request: dict[str, Any]) -> dict[str, Any]:
    """How much logits in training change with other values of keys, the weights being the same."""
    head = {
        "causal": AutoModelForCausalLM,
        "encoder": AutoModelForMaskedLM,
        "encoder-decoder": AutoModelForSeq2SeqLM,
    }[request["kind"]]
    logits = []
    for changes in ({}, request["changes"]):
        model = head.from_config(AutoConfig.for_model(**request["config"] | changes))
        logits.append(_in_training(model, request["config"]["vocab_size"]))
    return {"difference": float((logits[0] - logits[1]).abs().max())}


def _in_training(model: Any, vocab_size: int) -> Any:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(parity_rule.weight(0, name, list(parameter.shape))))
    ids = torch.tensor(parity_rule.tokens(0, (2, 12), vocab_size))
    given = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    found = model.train()(input_ids=ids, **given)
    return (found[0] if isinstance(found, tuple) else found.logits).detach()


def loads(request: dict[str, Any]) -> dict[str, Any]:
    """What the checkpoint in a directory is once it is loaded: logits, its config, and that it generates."""
    directory = Path(request["directory"])
    model, ids = loaded(directory), torch.tensor(request["tokens"])
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    continued(model, ids[:, :-2], mask[:, :-2], 2)
    np.save(directory / "logits.npy", model(input_ids=ids).logits.detach().numpy())
    return {"config": json.loads(model.config.to_json_string(use_diff=False))}


def learned(request: dict[str, Any]) -> dict[str, Any]:
    """The ids of each conversation as the tokenizer in a directory writes it, and which of them the assistant says.

    By the template's generation blocks; where it has none, by what each turn of the assistant adds to the text.
    """
    tokenizer = PreTrainedTokenizerFast.from_pretrained(request["directory"])
    found = []
    for messages in request["conversations"]:
        given = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        mask = given["assistant_masks"]
        if "{% generation %}" not in tokenizer.chat_template:
            mask = added(tokenizer, messages, given)
        asked = [k for k, message in enumerate(messages) if message["role"] == "assistant"]
        prompts = [
            tokenizer.apply_chat_template(messages[:k], add_generation_prompt=True, return_dict=True)["input_ids"]
            for k in asked
        ]
        found.append({"ids": given["input_ids"], "mask": mask, "prompts": prompts})
    return {"found": found}


def tagged(request: dict[str, Any]) -> dict[str, Any]:
    """The ids of each row's words, and their labels: of a word's first token, and -100 elsewhere."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(request["directory"])
    if hasattr(tokenizer.backend_tokenizer.pre_tokenizer, "add_prefix_space"):  # what AutoTokenizer is asked for
        tokenizer.backend_tokenizer.pre_tokenizer.add_prefix_space = True
    found = []
    for row in request["rows"]:
        encoded = tokenizer(row["words"], is_split_into_words=True, add_special_tokens=False)
        words = encoded.word_ids()
        labels = [row["labels"][word] if k == 0 or words[k - 1] != word else -100 for k, word in enumerate(words)]
        found.append({"ids": encoded["input_ids"], "labels": labels})
    return {"found": found}


def added(tokenizer: Any, messages: list[dict[str, str]], given: Any) -> list[int]:
    mask = [0] * len(given["input_ids"])
    for k, message in enumerate(messages):
        if message["role"] == "assistant":
            before = tokenizer.apply_chat_template(messages[:k], add_generation_prompt=True, tokenize=False)
            upto = tokenizer.apply_chat_template(messages[: k + 1], tokenize=False)
            first, last = given.char_to_token(0, len(before)), given.char_to_token(0, len(upto) - 1)
            mask[first : last + 1] = [1] * (last + 1 - first)
    return mask


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    can = {
        "versions": versions,
        "has": has,
        "make": make,
        "make_encoder": make_encoder,
        "make_encoder_decoder": make_encoder_decoder,
        "read_again": read_again,
        "make_classifier": make_classifier,
        "classify": classify,
        "rescore": rescore,
        "metrics": metrics,
        "entities": entities,
        "answer": answer,
        "keys": keys,
        "inert": inert,
        "loads": loads,
        "learned": learned,
        "tagged": tagged,
        "pairs": pairs,
        "prefer": prefer,
        "smoothed": smoothed,
        "embed": embed,
        "descend": torch_optimizers.descend,
        "schedule": torch_optimizers.schedule,
        "write": torch_seq2seq.write,
        "score_targets": torch_seq2seq.score_targets,
        "learn": functools.partial(torch_seq2seq.learn, gradients=gradients),
        "make_answerer": functools.partial(torch_answers.make_answerer, prepared=prepared, gradients=gradients),
        "find_answers": torch_answers.find_answers,
        "reward": torch_rewards.reward,
        "kto": torch_rewards.kto,
    }
    for line in sys.stdin:
        request = json.loads(line)
        try:
            found = can[request["do"]](request)
        except Exception as error:  # told to the test, which fails with it
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
