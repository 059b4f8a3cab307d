"""Aliases of keys: what other trainers call the keys of a recipe."""

from __future__ import annotations

from trainkit.recipe.toml.alias_notes import DIFFERENT, Alias

_SAME = {
    "model.dropout": "dropout hidden_dropout_prob hidden_dropout resid_pdrop",
    "model.attention_dropout": "attention_dropout attention_probs_dropout_prob attn_pdrop",
    "model.embedding_dropout": "embd_pdrop",
    "adapter.dropout": "lora_dropout",
    "optimizer.learning_rate": "lr max_lr peak_lr base_lr learning_rate",
    "optimizer.betas": "adam_betas",
    "optimizer.eps": "adam_epsilon adam_eps epsilon",
    "optimizer.weight_decay": "weight_decay decay wd",
    "optimizer.type": "optimizer_type optimizer_name optim_type",
    "schedule.type": "lr_scheduler_type lr_scheduler lr_schedule scheduler_type scheduler",
    "schedule": "lr_scheduler_config scheduler_config",
    "schedule.warmup": "warmup_steps num_warmup_steps warmup_iters lr_warmup_steps warmup_ratio warmup_fraction",
    "train.steps": "num_train_steps max_steps max_iters num_steps total_steps n_steps max_train_steps iterations",
    "train.epochs": "num_epochs num_train_epochs max_epochs n_epochs epoch",
    "train.tokens": "max_tokens_total total_tokens num_tokens train_tokens",
    "train.batch_size": "train_batch_size global_batch_size total_batch_size effective_batch_size bsz",
    "train.micro_batch_size": "device_batch_size per_device_parallelism batch_size_per_gpu"
    " train_micro_batch_size_per_gpu micro_batch",
    "task.label_smoothing": "label_smoothing_factor label_smoothing",
    "task.embedding_noise": "neftune_noise_alpha neftune_alpha noisy_embedding_alpha",
    "task.z_loss": "z_loss_weight z_loss_coefficient",
    "task.centring": "center_rewards_coefficient",
    "train.max_grad_norm": "grad_clip gradient_clip_val gradient_clip_norm clip_grad_norm clip_grad"
    " gradient_clipping max_norm",
    "data.sequence_length": "seq_length seq_len block_size max_seq_len max_seq_length sequence_len max_length"
    " cutoff_len train_seq_len model_max_length max_sequence_length",
    "model.layers": "n_layer n_layers num_layers num_hidden_layers depth",
    "model.heads": "n_head n_heads num_heads num_attention_heads",
    "model.hidden": "n_embd d_model hidden_size hidden_dim embed_dim dim width",
    "model.intermediate": "intermediate_size d_ff n_inner ffn_dim intermediate_dim mlp_dim",
    "model.context_length": "n_positions max_position_embeddings n_ctx",
    "model.pretrained": "model_name_or_path pretrained_model_name_or_path base_model model_id hf_model"
    " base_model_config initialize_from_hf",
    "model.revision": "model_revision",
    "model.resize_vocabulary": "resize_token_embeddings resize_vocab",
    "model.tied": "tie_word_embeddings tie_embeddings weight_tying",
    "model.type": "model_type architecture arch",
    "tokenizer.path": "tokenizer_name tokenizer_path tokenizer_name_or_path",
    "tokenizer.train.vocab_size": "vocab_size",
    "tokenizer.new_tokens": "add_tokens added_tokens additional_special_tokens extra_special_tokens",
    "run.seed": "seed random_seed data_seed",
    "run.name": "run_name name experiment_name wandb_run_name wandb_name",
    "run.directory": "output_dir save_dir save_path work_dir out_dir log_dir run_dir output_directory",
    "data.train.0.path": "files data_files data_path file_path dataset_path",
    "data.train.0.limit": "max_samples max_train_samples num_samples",
    "data.train.0.text_key": "text_column text_field dataset_text_field content_field",
    "data.cache": "cache_dir dataset_prepared_path tokenized_path",
    "data.held_out": "val_set_size validation_split test_size val_split val_size eval_split_ratio",
    "evaluate.every": "eval_steps eval_interval eval_every steps_per_eval evaluation_steps val_every val_interval "
    "run_val_every_n_steps",
    "evaluate.max_batches": "eval_iters max_eval_batches limit_eval_batches max_validation_batches",
    "evaluate.batch_size": "eval_batch_size per_device_eval_batch_size",
    "checkpoint.every_minutes": "save_interval_minutes",
    "sample.max_tokens": "max_new_tokens",
    "sample.temperature": "sampling_temperature",
    "parallel.fsdp": "fsdp_size fsdp_axis_size",
    "precision.params": "param_dtype params_dtype",
    "precision.compute": "compute_dtype dtype",
    "adapter.pretrained": "adapter_name_or_path lora_model_dir lora_name_or_path adapter_path lora_path",
    "adapter.rank": "lora_r lora_rank r",
    "adapter.alpha": "lora_alpha",
    "adapter.learning_rate_ratio": "loraplus_lr_ratio",
    "schema": "version schema_version recipe_version",
    # whole sections
    "adapter": "lora peft peft_config lora_config",
    "train": "training trainer training_arguments training_args training_params hyperparameters hparams",
    "optimizer": "optim",
    "evaluate": "eval evaluation evaluator",
    "checkpoint": "checkpointer checkpointing save",
    "track": "tracker logging logger wandb tensorboard aim metric_logger",
    "parallel": "mesh distributed sharding",
    "sample": "sampling generate generation",
}

#: Other trainers' names -> trainkit's. `warmup_steps` and `warmup_ratio` both become `warmup`, which takes an integer
#: for steps and a float for a fraction.
ALIASES: dict[str, Alias] = {name: Alias(key) for key, names in _SAME.items() for name in names.split()}
ALIASES.update(DIFFERENT)

_EVERY = "steps interval freq frequency every_steps every_n_steps interval_steps n_steps step_interval"
#: By section, where `*` is any name or number: names that only mean something in it -> its key.
SECTION_ALIASES: dict[str, dict[str, str]] = {
    section: {alias: key for key, aliases in keys.items() for alias in aliases.split()}
    for section, keys in {
        "sweep.parameters.*": {
            "low": "min lower start from minimum",
            "high": "max upper stop end to maximum",
            "points": "num count n steps num_points",
            "values": "choices options grid value list categorical",
            "log": "distribution scale log_scale",
        },
        "evaluate": {"every": f"{_EVERY} strategy"},
        "model": {"pretrained": "name path id checkpoint name_or_path"},
        "tokenizer": {"path": "name pretrained name_or_path id file"},
        "task": {"type": "name kind class algorithm", "loss": "loss_type"},
        "optimizer": {"type": "name kind class algorithm optimizer"},
        "schedule": {"type": "name kind class algorithm schedule"},
        "average": {"type": "name kind class algorithm"},
        "data.train.*": {"path": "file files url urls glob data_files filename"},
        "sample": {"prompts": "start prompt", "every": _EVERY, "max_tokens": "length max_length"},
        "statistics": {"every": _EVERY},
        "checkpoint": {"keep_every": _EVERY, "every_minutes": "minutes interval_minutes every_min"},
        "export": {"every": _EVERY},
    }.items()
}
