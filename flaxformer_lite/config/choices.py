"""Closed choices of config fields, stated once.

Tests check the tables of implementations against them.

Parts that can be added from outside (encodings, objectives, attentions and so on) are plug-ins
instead.
"""

# nn/functions/activations.py
ACTIVATIONS = (
    "relu",
    "relu_squared",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "silu",
    "tanh",
)
CONTEXT_ATTENTIONS = ("gather", "ring", "all_to_all")  # nn/attentions/context_parallel
BASES = ("", "reference", "copy")  # runs/start/begin.py
CACHES = ("float", "int8")  # nn/modules/cache.py
CORPORA = ("stdlib_code", "docstrings", "code_docstrings")  # data/corpora.py
EXPERT_DISPATCHES = ("gather", "all_to_all")  # nn/feed_forwards/moe.py
DTYPES = ("float32", "bfloat16")
INITS = ("normal", "normal_residual", "fan_in", "xavier")  # nn/modules/einsum.py
MATMULS = ("float", "int8", "fp8")  # nn/functions/quantized.py
QUANTIZATIONS = ("none", "int8", "int4", "nf4")  # nn/functions/quantized.py
MESH_MODES = ("jit", "shard_map", "pmap")  # sharding/jit.py
MLPS = ("plain", "gated", "none")
# nn/modules/norms.py
NORMS = ("layer", "layer_no_bias", "layer_no_affine", "rms", "rms_offset", "rms_no_affine")
# nn/modules/stack.py; a joined name lists what is kept, each more than the one before it
# (nn/functions/device_ops.py)
REMATS = (
    "none",
    "dots",
    "full",
    "attention",
    "attention+qkv",
    "attention+qkv+out",
    "attention+qkv+out+mlp",
)
POOLINGS = (  # nn/functions/pooling.py
    "mean",
    "first",
    "last",
    "max",
    "mean_sqrt",
    "weighted_mean",
)
# models/eurobert.py: late is the mean of what the classifier's dense layer makes of each token
CLASSIFIER_POOLINGS = (*POOLINGS, "late")
# nn/mixers/shared_keys.py
KEYS = ("own", "kept", "earlier")
QK_NORM_OVER = ("head", "each_head", "all_heads")  # nn/mixers/attention.py
RESIDUALS = ("sequential", "none", "parallel", "parallel_shared")  # nn/modules/block.py
# nn/feed_forwards/moe.py: whose tokens the losses of a router are means over
ROUTER_LOSSES = ("layer", "stack", "row")
ROUTER_SCORES = ("softmax", "sigmoid")  # nn/functions/routing.py
CAPACITY_GROUPS = ("row", "batch")  # nn/feed_forwards/capacity_moe.py
SCHEDULES = ("cosine", "linear", "rsqrt", "constant", "wsd")  # training/optimizer.py
STORES = ("gs", "s3")  # storage/remote.py
TOKENIZERS = ("byte_bpe", "sentencepiece", "words", "bytes")  # text/tokenizer_training.py
WIDTH_RULES = ("standard", "mup")  # config/architecture.py

# Slots of a model where a norm, a bias or dropout may stand, and of these the norms and biases
# inside one layer.
NORM_SLOTS = ("embed", "in", "branch", "out", "final")
LAYER_NORM_SLOTS = ("in", "branch", "out")
BIAS_SLOTS = ("embed", "query", "key", "value", "out", "mlp", "mlp_down", "head", "logits")
ATTENTION_BIAS_SLOTS = ("query", "key", "value", "out")
DROPOUT_SLOTS = ("embed", "attention", "mlp", "branch", "final")
