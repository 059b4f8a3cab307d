"""Families of keys of other trainers: of data, tasks and models."""

from __future__ import annotations

from trainkit.recipe.toml.alias_notes import DIFFERENT, Alias

_WEIGHTS = Alias("data.train.0.weight", "each [[data.train]] has its own")
_REWRITTEN = Alias("data.train", 'write document = { type = "prompt", prompt = "…", response = "…" } in [[data.train]]')
_CHAT = Alias("data.train", 'write document = { type = "chat", template = "…" } in [[data.train]]')
_LEARN = Alias(
    "data.train",
    'document = { type = "prompt", … } learns only responses; type = "chat" has the key learn',
)

OF_DATA: tuple[tuple[str, Alias], ...] = (
    # data
    (
        r"(preprocess_)?shards(_idx)?",
        Alias("data.train.0.limit", 'the first documents; a hub data set has split = "train[:10%]"'),
    ),
    (
        r"\w*dataset_?(dir|root) data_(dir|root|folder) (train|input)_(files?|bin|data|path|dir) media_dir "
        r"dataset_(split|subset|sample\w*)",
        DIFFERENT["train_file"],
    ),
    (
        r"(input_)?(val|valid|validation|eval|test)_(files?|bin|data|path|dir|dataset\w*|set) "
        r"dataset_(val|eval|test) input_val_bin",
        DIFFERENT["validation_file"],
    ),
    (r"dataset_config\w* dataset_args", DIFFERENT["dataset_config"]),
    (
        r"\w*(interleav\w+|mixture_\w+|stop_strategy|(dataset|train)_weights?|sampling_(probs?\w*|rates?))\w* "
        r"dataset_mix\w* mix_(strategy|ratio\w*|weights?)",
        _WEIGHTS,
    ),
    (
        r"\w*shuffle_?(buffer|merged|seed|dataset|window)\w* buffer_size curriculum_sampling",
        Alias("data.shuffle", 'write shuffle = { window = 10000 }, "full" or false'),
    ),
    (
        r"(val|validation|test|eval)_?(set_)?(split|size|percent|ratio|frac)\w* num_validation_sequences",
        Alias("data.held_out", "it is a share, such as 0.05"),
    ),
    (
        r"field_(instruction|input|output|system|human|model) "
        r"(instruction|input|output|prompt|response|answer|query)_(column|field|key)",
        _REWRITTEN,
    ),
    (r"column_(map|mapping|names) field_mapping columns", _REWRITTEN),
    (
        r"(source|input|target)_prefix (summary|target|source|label)_column",
        Alias(
            "data.train",
            'write document = { type = "source-target", source = "summarize: {article}", target = '
            '"{summary}" } in [[data.train]]',
        ),
    ),
    (
        r"max_(source|target|prompt|completion|input|output|answer|query)_(length|len)",
        Alias("data.sequence_length", "it is one length for the whole example"),
    ),
    (
        r"(default_|new_)?system_(prompt|message) default_system "
        r"(chat|prompt|conversation)_(format|template|style)\w* conversation enable_thinking",
        _CHAT,
    ),
    (r"mask_history", Alias("data.train", 'write document = { type = "chat", learn = "last" } in [[data.train]]')),
    (
        r"(mask|train_on|learn_on)_(the_)?(prompts?|inputs?|response\w*|eos|completion\w*|source)(_only)? "
        r"roles_to_train (completion|assistant)_only_loss \w*response_template",
        _LEARN,
    ),
    (
        r"(excess|overlong|too_long|truncat)\w+",
        Alias("data.encoding", 'write encoding = { type = "pad", too_long = "drop" }'),
    ),
    (
        r"min_(sample_|seq_|sequence_)?len(gth)?",
        Alias("data.train.0.min_characters", "a document's length in characters"),
    ),
    (
        r"pad_(to|with|token)_\w+ padding(_\w+)? dynamic_padding line_by_line reserved_label_len",
        DIFFERENT["pad_to_sequence_len"],
    ),
    (
        r"ds_type file_(type|format) data_format",
        Alias("data.train.0.format", "leave it out: the ending of a file decides"),
    ),
    (
        r"(tokenizer_)?(use_)?(fast|slow)(_tokenizer)? "
        r"tokenizer_(padding_side|use_fast|legacy|mode|backend|class|kwargs) "
        r"(merges|vocab)_file",
        DIFFERENT["tokenizer_type"],
    ),
    (
        r"meta_vocab_size padded_vocab_size make_vocab_size\w*",
        Alias("model.vocab_size", "leave it out: the tokenizer decides"),
    ),
    (r"split_special_tokens skip_special_tokens (bos|eos|unk|pad)_token(_id)?", DIFFERENT["special_tokens"]),
    # tasks
    (r"mlm_probability mask(ing)?_(prob|probability|ratio)", Alias("task.probability")),
    (r"whole_word_mask\w* wwm", Alias("task.unit", 'write unit = "word"')),
    (r"(num|n)_(labels|classes)", Alias("task.classes")),
    (r"task_type", Alias("task.type", 'leave it out of [adapter]; a recipe has [task] with type = "causal-lm"')),
    (r"problem_type", Alias("task.problem", '"multi-class", "multi-label" or "regression"')),
    (r"(dpo|orpo|kto|simpo|ipo|cpo|rl|pref|preference)_(beta|alpha|lambda) beta", Alias("task.beta")),
    (r"(dpo|simpo|ipo|orpo|rl)_loss(_type)?", Alias("task.loss")),
    (r"(simpo_|target_)gamma simpo_margin gamma_beta_ratio", Alias("task.margin")),
    (r"(kto_)?(desirable|chosen)_weight", Alias("task.desirable_weight")),
    (r"(kto_)?(undesirable|rejected)_weight", Alias("task.undesirable_weight")),
    (r"(dpo|cdpo|pref)_label_smoothing", Alias("task.label_smoothing")),
    (r"pref_ftx rpo_alpha (dpo_)?sft_weight", Alias("task.likelihood")),
    (
        r"(ref|reference)_model\w* \w*ref_log_?probs? sync_ref\w* teacher_model\w*",
        Alias("", "leave it out: the reference of [task] is the model before training; its answers are computed once"),
    ),
    (r"(process_)?reward_model\w*", Alias("task.type", 'write [task] with type = "reward" to train one')),
    (r"ignore_(pad|data)\w* label_pad\w*", Alias("", "leave it out: padding is never learned")),
    (r"loss_(fn|function|type) criterion", DIFFERENT["loss"]),
    (
        r"(ppo|grpo|rloo|reinforce)_\w+",
        Alias("task.type", 'there is no online RL; write type = "preference" or "kto"'),
    ),
    # models
    (r"sliding_window(_size)? attention_window", Alias("model.window")),
    (r"(num|n)_(local_|routed_)?experts moe_num_experts", Alias("model.experts")),
    (r"num_experts_per_tok(en)? experts_per_tok num_selected_experts moe_top_k", Alias("model.experts_per_token")),
    (r"(router_|moe_)?aux_loss_coef\w* load_balancing_loss\w*", Alias("model.router_loss")),
    (r"head_dim kv_channels", Alias("model.head_width")),
    (
        r"activation(_(function|fn))? rotary_\w+ multiple_of ffn_dim_multiplier hidden_act\w* norm_type "
        r"position_embedding\w* scale_attn\w* "
        r"reorder_and_upcast\w* use_bias qk_norm use_qk_norm",
        Alias("", "leave it out: model.type decides the form of a block"),
    ),
    (
        r"(use_)?hf_(model_)?config\w* config_(name|overrides) overrides_of_model_config model_config_\w+",
        Alias("model.pretrained", "its config.json is read; other keys of [model] override it"),
    ),
    (
        r"rope_(type|factor|scaling\w*) rope yarn_\w+",
        Alias("model.rope_scaling", 'write rope_scaling = { type = "linear", factor = 2.0 }'),
    ),
    (r"embed\w*_(pdrop|dropout|drop)", Alias("model.embedding_dropout")),
    (r"model_(tag|alias) run_(id|tag|suffix) project_name job_name exp(eriment)?_(id|tag)", Alias("run.name")),
    (
        r"start(_prompt)? prompts?(_file)? sample_(prompts?|text)",
        Alias("sample.prompts", 'a list, such as prompts = ["Once upon a time"]'),
    ),
    (r"(num|n)_iterations (max_)?train_(iters|iterations|steps) num_updates max_updates", Alias("train.steps")),
    (r"sample_(every|interval|freq\w*|steps)", Alias("sample.every")),
)
