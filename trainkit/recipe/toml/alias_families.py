"""Keys of other trainers by a part of their names: their options come in families, and each release adds members."""

from __future__ import annotations

import re

from trainkit.recipe.toml.alias_families_of_data import OF_DATA
from trainkit.recipe.toml.alias_notes import DIFFERENT, Alias

_FREEZE = Alias("optimizer.groups", 'a group with learning_rate_factor = 0 freezes: match = "…" names its parameters')
_GROUP = Alias("optimizer.groups", 'a group has match = "…", and a learning_rate_factor beside the common rate')
_TRACK = Alias("track", "write [track] with wandb = true, tensorboard = true or aim = true; there are no others")
_OPTIMIZER = Alias(
    "optimizer.type", 'trainkit does not have this one; moments = "int8" and "adafactor" need less memory'
)
_SHARED = Alias(
    "", "leave it out: devices share the batch (parallel.data) or the state (parallel.fsdp), not one example"
)
_ATTENTION = Alias("", "leave it out: the fastest attention of the device is used")
_KERNELS = Alias("", "leave it out: every step is compiled, and the fastest kernels of the device are used")
_WORKERS = Alias("", "leave it out: batches need no worker processes; trainkit cache-data has --workers")
_UPLOAD = Alias("", "uploading is an option of a command: trainkit export RUN OUT --push REPO; HF_TOKEN is its token")
_EXPORT = Alias("", "exporting is a command: trainkit export RUN OUT; [export] does it during training")
_GENERATE = Alias("evaluate.generate", "[evaluate.generate] has beams and max_tokens, and [sample] prompts")
_SPEAK = Alias("", "leave it out: the commands trainkit generate and trainkit chat write text")

_OF_TRAINING: tuple[tuple[str, Alias], ...] = (
    # memory and speed
    (
        r"\w*(liger|unsloth|cut_cross_entropy|chunked_cross|fused_|apex|_kernel$|bettertransformer|inductor)\w*",
        _KERNELS,
    ),
    (r"(torch_)?compile_\w+ torchdynamo\w* jit_\w+ \w*cross_entropy_block_size cudnn_benchmark", _KERNELS),
    (r"\w*(flash|sdp|sdpa|eager|flex|xformers?|s2|shift|ring)_?(attn|attention)\w* attn_impl\w*", _ATTENTION),
    (
        r"\w*(gradient|activation)_checkpoint\w* ac_(mode|option|freq) ((full|selective)_)?recompute\w*",
        DIFFERENT["gradient_checkpointing"],
    ),
    (r"\w*(activation|act|param\w*|optimizer|cpu)_offload\w*", Alias("train.remat", 'write remat = "offload"')),
    (
        r"(auto_find|auto)_batch_size batch_size_finder",
        Alias("train.micro_batch_size", 'write micro_batch_size = "auto"'),
    ),
    (
        r"\w*(num_proc|num_workers|_processes|prefetch_factor|pin_memory|persistent_workers|workers) dataloader_\w+",
        _WORKERS,
    ),
    (r"low_cpu_mem\w* gc_(steps|collect\w*) torch_empty_cache_steps empty_cache\w* use_cache", _KERNELS),
    (r"optimizer_in_bwd \w*in_backward", _KERNELS),
    # precision
    (
        r"\w*(fp16|bf16|half_precision|amp|loss_scal\w*|autocast)_\w+ (torch|model|training)_dtype upcast_\w+ "
        r"\w*precision fp8\w* quantization",
        Alias("precision.compute", 'write compute = "bfloat16"'),
    ),
    (
        r"bnb_\w+ quantiz\w+ \w*quantize_base double_quant\w* load_in_\w+ (gptq|awq|hqq)_\w+",
        DIFFERENT["quantization_bit"],
    ),
    # devices
    (
        r"\w*(tensor|context|sequence|pipeline|expert|model)_?_?parallel\w* (tp|cp|pp|ep|sp)_(size|degree)",
        _SHARED,
    ),
    (
        r"data_parallel_replicate\w* ddp_\w+ dp_(size|degree) num_(gpus|devices|nodes) nproc\w* world_size",
        Alias("parallel.data", "leave it out, and every device takes a part of the batch"),
    ),
    (
        r"(fsdp|deepspeed|zero)\w* accelerate\w* ds_config data_parallel_shard\w* custom_sharded_layers",
        DIFFERENT["fsdp_config"],
    ),
    (r"no_cuda use_cpu use_mps_device", Alias("parallel.platform", 'write platform = "cpu"')),
    (
        r"device_type require_accelerator accelerator tpu_\w+ gpu_ids? local_rank main_process_port use_gpu "
        r"use_cuda",
        DIFFERENT["device"],
    ),
    (r"(full_|cudnn_|use_)?determinis\w+", Alias("run.deterministic", "write deterministic = true")),
    # records
    (r"(use_|enable_)?(mlflow|comet|swanlab|neptune|clearml|trackio|dvclive|codecarbon)\w*", _TRACK),
    (r"(use_|enable_)tensorboard", Alias("track.tensorboard", "write [track] with tensorboard = true")),
    (r"wandb_\w+", DIFFERENT["wandb_project"]),
    (
        r"log(ging)?_(first|every|freq|steps?|nan|on)\w* include_num_input_tokens_seen include_tokens\w*",
        DIFFERENT["logging_steps"],
    ),
    (
        r"log_level\w* disable_tqdm verbos\w+ print_\w+ report_\w+ skip_memory_metrics debug",
        Alias("", "leave it out: each run writes one log, which trainkit watch RUN shows"),
    ),
    (r"profil\w+", DIFFERENT["profiler"]),
    (r"hub_\w+ push_to_hub\w* hf_upload", _UPLOAD),
    (r"hf_save_(steps|every) export_(steps|every)", Alias("export.every")),
    (r"export_\w+ merge_lora merged?_\w+", _EXPORT),
    # checkpoints
    (
        r"save_(last|final|best|weights_only|full\w*) save_on_\w+",
        Alias("", "leave it out: the end of a run and a stop save a checkpoint; checkpoint.best keeps the best one"),
    ),
    (
        r"base_path checkpoint_(base|root)\w*",
        Alias("run.directory", "checkpoints are in the directory of the run, which is in this one"),
    ),
    (
        r"keep_last_n\w* max_checkpoints? num_checkpoints checkpoints_to_keep max_to_keep \w*total_limit",
        DIFFERENT["save_total_limit"],
    ),
    (
        r"save_every\w* save_freq\w* checkpoint_(every|interval|freq|steps)\w* epochs_to_save save_n_\w+",
        DIFFERENT["save_steps"],
    ),
    (
        r"(save|checkpoint)_(only_model|safetensors|optimizer\w*|adapter\w*|strategy|on_\w+|checkpoints?|dtype|final\w*)"
        r" async_\w*save\w* restore_callback\w*",
        Alias(
            "",
            "leave it out: a checkpoint always holds everything that resuming needs; trainkit export "
            "RUN OUT writes safetensors",
        ),
    ),
    (
        r"(auto_)?(resume|continue)(_from)?_\w+ auto_resume ckpt_(path|dir) checkpoint_path load_checkpoint",
        DIFFERENT["load_checkpoint_path"],
    ),
    (
        r"(initialize|init|start)_from_(checkpoint|ckpt)\w* load_from_checkpoint warm_start\w*",
        DIFFERENT["load_checkpoint_path"],
    ),
    # evaluations
    (
        r"eval_(accumulation|do_concat|packing|use_gather|full)\w* batch_eval_metrics prediction_loss_only "
        r"include_(inputs|for)\w*metrics",
        Alias("", "leave it out: evaluations keep sums on the device, and need no memory for predictions"),
    ),
    (
        r"(eval|val)(uation)?_(on_start|delay|on_begin|first) run_initial_eval\w*",
        Alias("evaluate.every", "the run is evaluated each time after this number of steps, and at the end"),
    ),
    (
        r"eval_harness\w* lm_eval\w* do_bench_eval bench_\w+",
        Alias("", "evaluating tasks is a command: trainkit eval RUN --lm-eval TASK"),
    ),
    (
        r"(eval|val|validation)\w*_(samples|tokens|batches|iters|max_steps|num_steps) max_(eval|val)\w+",
        Alias("evaluate.max_batches", "it counts batches; a set with limit = 1000 has that many documents"),
    ),
    (
        r"\w*(eval|val|core|metric)\w*_every (run_)?(eval|val)\w*_(freq|frequency|every|steps|interval)\w*",
        Alias("evaluate.every"),
    ),
    (
        r"(per_device_)?(eval|val|validation)_(parallelism|batch_size|bs|bsz) batch_size_val",
        Alias("evaluate.batch_size"),
    ),
    (
        r"compute_(accuracy|metrics) metrics?_names? eval_metrics?",
        Alias("evaluate.metrics", 'write [[evaluate.metrics]] with type = "accuracy"'),
    ),
    (r"predict_with_generate (num_)?beams?(_size|_search)? generation_\w+ eval_max_new_tokens", _GENERATE),
    (r"infer(ence)?_\w+ vllm_\w+", _SPEAK),
    (r"early_stop\w*", Alias("evaluate.patience", "it counts evaluations without improvement")),
    (
        r"loss_watchdog\w* \w*spike\w* nan_\w+ skip_nan\w*",
        Alias("guard", "[guard] says what to do when a loss is not finite or far too high"),
    ),
    # the optimizer and its schedule
    (r"freez\w+ unfroz\w+ \w*trainable_(layers|modules|params\w*) train_only\w* layers_to_(train|freeze)", _FREEZE),
    (
        r"(un)?embed\w*_lr\w* (matrix|head|scalar|router|vision|mm_projector)_lr lr_groups \w*lr_mult\w* "
        r"\w*layer\w*_lr\w* optim_target_modules param_groups? no_decay\w*",
        _GROUP,
    ),
    (r"use_muon", Alias("optimizer.type", 'write type = "muon"')),
    (
        r"(use_)?(galore|apollo|badam|lomo|adalomo|adam_mini|grokadamw|stable_adamw|lisa|relora|q_galore|came)(_\w+)?",
        _OPTIMIZER,
    ),
    (
        r"(optim|optimizer)_(args|kwargs|params|config|cfg)",
        Alias("optimizer", "write its keys in [optimizer] itself"),
    ),
    (
        r"(num_)?(lr_)?(cycles?|restarts)(_length|_steps)? cosine_restarts",
        Alias("schedule.restarts", 'of type = "cosine"'),
    ),
    (
        r"(num_)?(lr_)?(warmdown|cooldown|decay|stable)_(iters?|steps?|frac\w*|ratio|length) "
        r"warmup_stable_steps",
        Alias("schedule.decay", 'of type = "wsd": a whole number is steps, one below 1 a share of the run'),
    ),
    (r"(lr_|re)?warm_?up\w*", Alias("schedule.warmup", "a whole number is steps, one below 1 a share of the run")),
    (
        r"(lr_?)?scheduler_\w+ lr_\w*schedule\w* constant_lr\w*",
        Alias("schedule.type", "write its keys in [schedule] itself"),
    ),
    (
        r"target_(param_data|flops)\w* tokens_per_param\w* chinchilla\w*",
        Alias("train.tokens", "write the number of tokens"),
    ),
    # adapters
    (r"\w*(use_)?dora", DIFFERENT["use_dora"]),
    (r"\w*(use_)?rs_?lora", DIFFERENT["use_rslora"]),
    (
        r"(lora_)?modules_to_save (lora_)?additional_target exclude_modules lora_\w*(modules|layers|target)\w*"
        r" layers_(to_transform|pattern)",
        Alias("adapter.targets", "adapters are added to linear layers only; embeddings and norms are frozen"),
    ),
    (
        r"lora_\w+ peft_\w+ pissa\w* init_lora\w* use_(peft|lora) create_new_adapter fan_in_fan_out "
        r"(oft|vera|loha)_\w+",
        Alias("adapter", "leave it out: [adapter] has type, rank, alpha, targets, dropout, variant and base"),
    ),
)
#: Patterns of names, separated by spaces, and what is meant. The first pattern that matches a whole name counts.
FAMILIES = (*_OF_TRAINING, *OF_DATA)
_FAMILIES = tuple((re.compile("|".join(patterns.split())), meant) for patterns, meant in FAMILIES)
#: What people add to the name of a section.
_ENDING = re.compile(r"_?(config|cfg|conf|args|arguments|kwargs|params|options|opts|settings|section)$")


def family_of(name: str) -> Alias | None:
    """Return what is meant by a key whose name belongs to a family; None if it belongs to none."""
    return next((meant for pattern, meant in _FAMILIES if pattern.fullmatch(name)), None)


def without_ending(name: str) -> str:
    """Return the name of a section without what people add to it: `data` for `data_config`."""
    return _ENDING.sub("", name)
