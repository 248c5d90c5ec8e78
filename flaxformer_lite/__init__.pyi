"""The public names, for type checkers and for __init__.py, which loads each from its module."""

from flaxformer_lite.config import (
    ConfigError as ConfigError,
    Execution as Execution,
    ExperimentConfig as ExperimentConfig,
    InitConfig as InitConfig,
    LayerConfig as LayerConfig,
    LayerKind as LayerKind,
    ModelConfig as ModelConfig,
    NormConfig as NormConfig,
    StackConfig as StackConfig,
    from_config_dict as from_config_dict,
    to_config_dict as to_config_dict,
)
from flaxformer_lite.embedder import Embedder as Embedder, load_embedder as load_embedder
from flaxformer_lite.inference.generate import (
    Generation as Generation,
    generate as generate,
    stream as stream,
)
from flaxformer_lite.inference.inside.capture import capture as capture, names_of as names_of
from flaxformer_lite.inference.inside.lens import logit_lens as logit_lens
from flaxformer_lite.inference.prepare_weights import prepare_weights as prepare_weights
from flaxformer_lite.inference.score import Scores as Scores, score as score
from flaxformer_lite.model_details import (
    load_labels as load_labels,
    load_tokenizer as load_tokenizer,
    load_word_vectors as load_word_vectors,
)
from flaxformer_lite.models import build_model as build_model
from flaxformer_lite.models.skeletons.build_layers import init_cache as init_cache
from flaxformer_lite.nn.adapters.lora import LoraConfig as LoraConfig
from flaxformer_lite.nn.adapters.merge import merge_adapter as merge_adapter
from flaxformer_lite.nn.attentions.dispatch import attend as attend, attention as attention
from flaxformer_lite.nn.feed_forwards.mlp import FeedForward as FeedForward, MlpConfig as MlpConfig
from flaxformer_lite.nn.functions.kernels import kernel_weights as kernel_weights, pool as pool
from flaxformer_lite.nn.functions.losses import (
    CrossEntropy as CrossEntropy,
    DeferredLogits as DeferredLogits,
    cross_entropy as cross_entropy,
)
from flaxformer_lite.nn.functions.masks import (
    Mask as Mask,
    causal as causal,
    dense as dense,
    full as full,
    padding as padding,
    prefix as prefix,
    segments as segments,
    window as window,
)
from flaxformer_lite.nn.functions.nearest import nearest as nearest
from flaxformer_lite.nn.functions.pooling import mean_pool as mean_pool
from flaxformer_lite.nn.functions.rotary import Phase as Phase, rotate as rotate
from flaxformer_lite.nn.mixers.attention import (
    Attention as Attention,
    AttentionConfig as AttentionConfig,
)
from flaxformer_lite.nn.modules.block import Block as Block
from flaxformer_lite.nn.modules.cache import init_stack_cache as init_stack_cache
from flaxformer_lite.nn.modules.context import Context as Context
from flaxformer_lite.nn.modules.einsum import Einsum as Einsum
from flaxformer_lite.nn.modules.layout import (
    stack_layers as stack_layers,
    unstack_layers as unstack_layers,
)
from flaxformer_lite.nn.modules.nnx import from_nnx as from_nnx, to_nnx as to_nnx
from flaxformer_lite.nn.modules.norms import Norm as Norm
from flaxformer_lite.nn.modules.stack import Stack as Stack
from flaxformer_lite.nn.positions.alibi import Alibi as Alibi
from flaxformer_lite.nn.positions.binary import Binary as Binary
from flaxformer_lite.nn.positions.index import Index as Index
from flaxformer_lite.nn.positions.learned import Learned as Learned
from flaxformer_lite.nn.positions.nope import Nope as Nope
from flaxformer_lite.nn.positions.rope import Rope as Rope
from flaxformer_lite.nn.positions.shaw import Shaw as Shaw
from flaxformer_lite.nn.positions.sinusoidal import Sinusoidal as Sinusoidal
from flaxformer_lite.nn.positions.t5_buckets import T5Buckets as T5Buckets
from flaxformer_lite.open_model import load_pretrained as load_pretrained
from flaxformer_lite.pretrained.word_vectors import WordVectors as WordVectors
from flaxformer_lite.runs.run import run as run
from flaxformer_lite.runtime.environment import keep_compiled as keep_compiled
from flaxformer_lite.save_model import (
    save_adapter as save_adapter,
    save_pretrained as save_pretrained,
)

__version__: str
__all__: list[str]
