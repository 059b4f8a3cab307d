"""Keys of other trainers that differ from those of trainkit: what to write instead, and what differs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alias:
    """The dotted key that trainkit has for another trainer's key, empty if there is none, and what differs."""

    key: str = ""
    note: str = ""


_TARGETS = "layers are query, key, value, output, gate, up, down; in GPT-2 and MPT qkv, output, mlp_in, mlp_out"
_TRACKERS = Alias("track", "write [track] with wandb = true, tensorboard = true or aim = true")
DIFFERENT = {
    "per_device_train_batch_size": Alias(
        "train.batch_size",
        "that one counts sequences of one device in one pass; batch_size is global: per device x devices x accumulation"
        " (train.micro_batch_size is per device and pass)",
    ),
    "gradient_accumulation_steps": Alias(
        "", "leave it out: it follows from train.batch_size / (train.micro_batch_size x devices)"
    ),
    "save_steps": Alias(
        "checkpoint.keep_every",
        "all of them are kept; what the run resumes from is saved by the clock: checkpoint.every_minutes",
    ),
    "save_total_limit": Alias(
        "checkpoint.keep_last", "this many rolling checkpoints are kept; those of checkpoint.keep_every are always kept"
    ),
    "bf16": Alias("precision.compute", 'write compute = "bfloat16"'),
    "fp16": Alias("precision.compute", 'write compute = "float16", or "bfloat16", which needs no loss scale'),
    "mixed_precision": Alias("precision.compute", 'write compute = "bfloat16" or "float32"'),
    "target_modules": Alias("adapter.targets", _TARGETS),
    "lora_target_modules": Alias("adapter.targets", _TARGETS),
    "lora_target_linear": Alias("adapter.targets", 'write targets = "all-linear"'),
    "use_rslora": Alias("adapter.variant", 'write variant = "rslora"'),
    "use_dora": Alias("adapter.variant", 'write variant = "dora"'),
    "load_in_4bit": Alias("adapter.base", 'write base = "nf4"'),
    "load_in_8bit": Alias("adapter.base", 'a base can be in 4 bits, but not in 8: base = "nf4"'),
    "bnb_4bit_quant_type": Alias("adapter.base", 'write base = "nf4"; its scales are always quantised twice'),
    "bnb_4bit_use_double_quant": Alias("adapter.base", 'write base = "nf4"; its scales are always quantised twice'),
    "logging_steps": Alias("", "leave it out: every step is logged"),
    "log_interval": Alias("", "leave it out: every step is logged"),
    "report_to": _TRACKERS,
    "logging_dir": Alias("track.tensorboard", "write tensorboard = true: its files are in the run's directory"),
    "min_lr": Alias("schedule.min_ratio", "min_ratio is a share of the peak: min_lr / learning_rate"),
    "adam_beta1": Alias("optimizer.betas", "write both in one list: betas = [0.9, 0.95]"),
    "adam_beta2": Alias("optimizer.betas", "write both in one list: betas = [0.9, 0.95]"),
    "adam_beta3": Alias("optimizer.betas", 'write all in one list; type = "adan" and "ademamix" have three'),
    "beta1": Alias("optimizer.betas", "write both in one list: betas = [0.9, 0.95]"),
    "beta2": Alias("optimizer.betas", "write both in one list: betas = [0.9, 0.95]"),
    "init_from": Alias(
        "",
        "to resume: trainkit resume RUN; to begin with a checkpoint: model.pretrained; else leave it out",
    ),
    "data.train.*.source": Alias("", 'write type = "huggingface" and id = "…", or path = "…" for files'),
    "data.configs": Alias("data.train", "each of them is one [[data.train]], with name, path and weight"),
    "data.components": Alias("data.train", "each of them is one [[data.train]], with name, path and weight"),
    "train.id": Alias("run.name"),
    "resume_from_checkpoint": Alias("", "resuming is a command: trainkit resume RUN"),
    "num_workers": Alias("", "batches need no worker processes; trainkit cache-data has --workers"),
    "checkpoint_files": Alias("model.pretrained", "it names the directory of the files"),
    "recipe_checkpoint": Alias("", "resuming is a command: trainkit resume RUN"),
    "load_checkpoint_path": Alias("run.parameters_from", "a run to begin with; to resume one: trainkit resume RUN"),
    "checkpoint_dir": Alias(
        "model.pretrained", "it names what a run begins with; its own checkpoints are in the run's directory"
    ),
    "trust_remote_code": Alias("", "leave it out: code that comes with a checkpoint is never run"),
    "train_file": Alias("data.train", 'write [[data.train]] with path = "…"'),
    "validation_file": Alias("data.validation", 'write [[data.validation]] with path = "…"'),
    "dataset_name": Alias("data.train", 'write [[data.train]] with type = "huggingface" and id = "…"'),
    # batches and their length
    "sample_packing": Alias("data.encoding", 'write encoding = { type = "pack" } in [data]'),
    "eval_sample_packing": Alias("data.encoding", "validation sets are encoded like the training data"),
    "eval_packing": Alias("data.encoding", "validation sets are encoded like the training data"),
    "packing": Alias("data.encoding", 'write encoding = { type = "pack" } in [data]'),
    "packed": Alias("data.encoding", 'write encoding = { type = "pack" } in [data]'),
    "neat_packing": Alias("data.encoding", 'write encoding = { type = "pack" } in [data]'),
    "pad_to_sequence_len": Alias(
        "data.encoding", 'batches have fixed shapes; write encoding = { type = "pad" } for one text in each example'
    ),
    "group_by_length": Alias("data.encoding", 'write encoding = { type = "pad", buckets = [128, 512] }'),
    "max_steps_per_epoch": Alias("train.steps", "the length of the run is in [train]: steps, epochs or tokens"),
    "tokenizer_type": Alias("tokenizer.path", "the files there say what kind of tokenizer it is"),
    "special_tokens": Alias(
        "", "leave it out: the tokenizer's files name them, and padding needs none; new ones are listed in new_tokens"
    ),
    "drop_last": Alias("", "every batch is full: examples of several epochs share a batch where they have to"),
    "shuffle_dataset": Alias("data.shuffle", 'write shuffle = "full" or false'),
    # memory and speed
    "gradient_checkpointing": Alias(
        "train.remat", 'write remat = "blocks"; by default the plan chooses what a step recomputes'
    ),
    "enable_activation_checkpointing": Alias("train.remat", 'write remat = "blocks"; by default the plan chooses'),
    "activation_checkpointing": Alias("train.remat", 'write remat = "blocks"; by default the plan chooses'),
    "enable_activation_offloading": Alias("train.remat", 'write remat = "offload"'),
    "torch_compile": Alias("", "leave it out: every step is compiled"),
    "compile": Alias("", "leave it out: every step is compiled"),
    "fused": Alias("", "leave it out: every step is compiled into one program"),
    "foreach": Alias("", "leave it out: every step is compiled into one program"),
    "chunked_cross_entropy": Alias("", "leave it out: the loss never holds the logits of a whole batch"),
    "cut_cross_entropy": Alias("", "leave it out: the loss never holds the logits of a whole batch"),
    "liger_fused_linear_cross_entropy": Alias("", "leave it out: the loss never holds the logits of a whole batch"),
    "profiler": Alias("", "profiling is an option of a command: trainkit run RECIPE --profile 20:25"),
    "flash_attention": Alias("", "leave it out: the fastest attention of the device is used"),
    "attention": Alias("", "leave it out: the fastest attention of the device is used"),
    "use_flash_attention": Alias("", "leave it out: the fastest attention of the device is used"),
    "use_flash_attention_2": Alias("", "leave it out: the fastest attention of the device is used"),
    "flash_attn": Alias("", "leave it out: the fastest attention of the device is used"),
    "attn_implementation": Alias("", "leave it out: the fastest attention of the device is used"),
    "xformers_attention": Alias("", "leave it out: the fastest attention of the device is used"),
    "device": Alias("parallel.platform", 'write platform = "gpu", "tpu" or "cpu"; by default the best is used'),
    "backend": Alias("", "leave it out: jax chooses how devices communicate"),
    "deepspeed": Alias("parallel.fsdp", "fsdp = 4 divides parameters and optimizer over 4 devices"),
    "zero_stage": Alias("parallel.fsdp", "fsdp = 4 divides parameters and optimizer over 4 devices"),
    "fsdp_config": Alias("parallel.fsdp", "fsdp = 4 divides parameters and optimizer over 4 devices"),
    "model_axis_size": Alias("parallel.fsdp", "fsdp = 4 divides parameters and optimizer over 4 devices"),
    "fsdp_axis": Alias("parallel.fsdp", "fsdp = 4 divides parameters and optimizer over 4 devices"),
    "batch_axis": Alias("parallel.data", "by default every device that fsdp leaves takes a part of the batch"),
    "axis_mapping": Alias("parallel.fsdp", "fsdp = 4 divides parameters and optimizer over 4 devices"),
    "tf32": Alias("precision.compute", 'write compute = "float32" or "bfloat16"'),
    "mp": Alias("precision.compute", 'write params = "float32" and compute = "bfloat16" in [precision]'),
    "pure_bf16": Alias("precision.params", 'write params = "bfloat16"'),
    "dataloader_num_workers": Alias("", "leave it out: batches need no worker processes"),
    "preprocessing_num_workers": Alias("", "leave it out: trainkit cache-data has --workers"),
    "overwrite_cache": Alias("", "leave it out: what changed is tokenised again automatically"),
    "overwrite_output_dir": Alias("", "leave it out: a run never replaces another; run.name names a new one"),
    "remove_unused_columns": Alias("", "leave it out: the document of a source names the columns that it reads"),
    "ddp_timeout": Alias("", "leave it out: jax decides how long the processes of a run wait for each other"),
    "ddp_find_unused_parameters": Alias("", "leave it out: nothing like it is needed"),
    # the learning rate
    "decay_lr": Alias("schedule.type", 'write type = "cosine", or "constant" for no decay'),
    "lr_decay_iters": Alias(
        "",
        "leave it out: the learning rate of a schedule decays until train.steps; wsd has decay, its last phase",
    ),
    "min_lr_ratio": Alias("schedule.min_ratio"),
    "min_lr_rate": Alias("schedule.min_ratio"),
    "cosine_min_lr_ratio": Alias("schedule.min_ratio"),
    "lr_scheduler_kwargs": Alias("schedule", "its keys are those of [schedule], such as min_ratio and restarts"),
    "use_badam": Alias("optimizer.type", 'there is no BAdam; moments = "int8" or "adafactor" saves memory'),
    "use_galore": Alias("optimizer.type", 'there is no GaLore; moments = "int8" and "adafactor" need less memory'),
    "optim": Alias("optimizer.type", 'write type = "adamw" in [optimizer]'),
    # evaluations, checkpoints and records
    "eval_strategy": Alias("evaluate.every", "every = 100 evaluates at every 100th step; without it, at the end"),
    "evaluation_strategy": Alias("evaluate.every", "every = 100 evaluates at every 100th step; without it, at the end"),
    "evals_per_epoch": Alias("evaluate.every", "every counts steps"),
    "do_eval": Alias("evaluate.every", "a recipe with [[data.validation]] or data.held_out is evaluated"),
    "do_train": Alias("", "leave it out: trainkit run trains, and trainkit eval evaluates"),
    "eval_only": Alias("", "evaluating is a command: trainkit eval RUN"),
    "early_stopping_patience": Alias("evaluate.patience"),
    "save_strategy": Alias(
        "checkpoint.every_minutes",
        "what the run resumes from is saved by the clock; keep_every = 1000 keeps those of every 1000th step",
    ),
    "saves_per_epoch": Alias(
        "checkpoint.keep_every",
        "keep_every counts steps; what the run resumes from is saved by checkpoint.every_minutes",
    ),
    "save_interval": Alias("checkpoint.every_minutes"),
    "save_every": Alias("checkpoint.keep_every", "keep_every counts steps"),
    "always_save_checkpoint": Alias(
        "checkpoint.best", "the newest are always saved, by checkpoint.every_minutes; best keeps the best one, too"
    ),
    "do_sample": Alias("", "leave it out: tokens are drawn; temperature = 0 takes the likeliest one"),
    "load_best_model_at_end": Alias(
        "checkpoint.best", 'write best = { metric = "validation/held-out/loss", mode = "min" }: RUN/best names it'
    ),
    "metric_for_best_model": Alias(
        "checkpoint.best", 'write best = { metric = "validation/held-out/loss", mode = "min" }'
    ),
    "greater_is_better": Alias("checkpoint.best", 'write best = { metric = "…", mode = "max" }'),
    "hf_save_path": Alias("export", "a recipe with [export] writes the model for transformers during training"),
    "log_peak_memory_stats": Alias("", "leave it out: every run logs its memory"),
    "logging_strategy": Alias("", "leave it out: every step is logged"),
    "log_every_n_steps": Alias("", "leave it out: every step is logged"),
    "log_every": Alias("", "leave it out: every step is logged"),
    "plot_loss": Alias("", "leave it out: trainkit watch RUN draws the losses"),
    "track.backend": _TRACKERS,
    "wandb_log": Alias("track.wandb", "write [track.wandb] with project"),
    "wandb_project": Alias("track.wandb", "write [track.wandb] with project"),
    "use_wandb": Alias("track.wandb", "write [track.wandb] with project"),
    "wandb_entity": Alias("track.wandb", "write [track.wandb] with entity"),
    "wandb_watch": Alias("statistics.every", "[statistics] logs norms and histograms of each layer"),
    "wandb_log_model": Alias("", "leave it out: trainkit export RUN OUT writes a model"),
    "wandb_mode": Alias("track.wandb", 'write [track.wandb] with mode = "online" or "offline"'),
    # data
    "datasets": Alias("data.train", 'write [[data.train]] with path = "…", or with type = "huggingface" and id = "…"'),
    "dataset": Alias("data.train", 'write [[data.train]] with path = "…", or with type = "huggingface" and id = "…"'),
    "pretraining_dataset": Alias(
        "data.train", 'write [[data.train]] with path = "…", or with type = "huggingface" and id = "…"'
    ),
    "id": Alias("data.train", 'write [[data.train]] with type = "huggingface" and id = "…"'),
    "train_urls": Alias("data.train", "write [[data.train]] with path = [ … ]"),
    "validation_urls": Alias("data.validation", "write [[data.validation]] with path = [ … ]"),
    "test_datasets": Alias("data.validation", 'write [[data.validation]] with path = "…"'),
    "eval_dataset": Alias("data.validation", 'write [[data.validation]] with path = "…"'),
    "dataset_config": Alias("data.train", "a source of type huggingface has config"),
    "field_messages": Alias("data.train", 'write document = { type = "chat", key = "…" } in [[data.train]]'),
    "message_field_role": Alias("data.train", "messages have role and content, or from and value"),
    "message_field_content": Alias("data.train", "messages have role and content, or from and value"),
    "message_property_mappings": Alias("data.train", "messages have role and content, or from and value"),
    "chat_template": Alias("data.train", 'write document = { type = "chat", template = "…" } in [[data.train]]'),
    "template": Alias(
        "",
        'leave it out: templates have no names here; documents of type "chat" are written by that of the tokenizer, or '
        'of their key template = "FILE"',
    ),
    "checkpoint.keep": Alias("checkpoint.keep_every", "it is a number of steps, or a list of steps"),
    "track._component_": _TRACKERS,
    "train_on_inputs": Alias(
        "",
        'leave it out: of documents of type "chat" and "prompt" only answers are learned; to learn all of a chat, write'
        ' document = { type = "chat", learn = "all" } in [[data.train]]',
    ),
    "stage": Alias("task.type"),
    "rl": Alias("task.type", 'write [task] with type = "preference" or "kto"'),
    "pref_beta": Alias("task.beta"),
    "pref_loss": Alias("task.loss"),
    "teacher": Alias("", "leave it out: there is no distillation"),
    "student": Alias("model", "there is no distillation"),
    "reference_free": Alias("task.loss", '"orpo", "simpo" and "cpo" need no reference model'),
    "loss": Alias("task.type", "the task has the loss: write [task] with type"),
    # adapters
    "finetuning_type": Alias("adapter", "a recipe with [adapter] trains LoRA, one without it the whole model"),
    "lora_target": Alias("adapter.targets", f'write targets = "all-linear", or a list: {_TARGETS}'),
    "lora_attn_modules": Alias("adapter.targets", _TARGETS),
    "apply_lora_to_mlp": Alias("adapter.targets", _TARGETS),
    "apply_lora_to_output": Alias("adapter.targets", _TARGETS),
    "quantization_bit": Alias("adapter.base", 'write base = "nf4"'),
    "bnb_4bit_compute_dtype": Alias("precision.compute", 'write compute = "bfloat16"'),
    "_component_": Alias(
        "", 'the type of a table chooses what it is, such as type = "llama" in [model]; a tokenizer has a path'
    ),
    "checkpoint._component_": Alias("", "leave it out: checkpoints have one form; trainkit export writes others"),
    "checkpoint.model_type": Alias("", "leave it out: the config.json of a checkpoint says what it is"),
    "adapter.bias": Alias("", "leave it out: an adapter trains no biases"),
    "track.type": _TRACKERS,
    "track.tags": Alias(
        "", "leave it out: a run has no tags; run.name names it, and track.experiment groups runs in Aim"
    ),
    "optimizer.decay": Alias(
        "", 'it is called schedule.decay here, of type = "wsd": a whole number is steps, one below 1 a share of the run'
    ),
    "weight_decay_lr_schedule": Alias(
        "", "leave it out: weight decay follows the learning rate; weight_decay in [schedules] gives it its own course"
    ),
    "sample.num_samples": Alias("", "leave it out: each text in prompts is continued once; repeat one to see more"),
    "tokenizer._component_": Alias("", "leave it out: a tokenizer has only a path, and the files there say its kind"),
    "bias": Alias("", 'leave it out: model.type decides; "gpt2" has biases, "mpt" has none'),
}
