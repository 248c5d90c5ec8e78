"""The configuration records of an experiment, and the one place where a ConfigDict is checked and turned into them."""

from flaxformer_lite.config.architecture import Architecture, LayerKind, ModelConfig, check_family
from flaxformer_lite.config.execution import Execution
from flaxformer_lite.config.experiment import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)
from flaxformer_lite.config.parsing import choose_plugins, fingerprint, from_config_dict, to_config_dict
from flaxformer_lite.config.parts import InitConfig, LayerConfig, NormConfig, StackConfig
from flaxformer_lite.config.rules import (
    ConfigError,
    all_among,
    among,
    instance,
    not_negative,
    optional_plugin,
    plugin,
    plugin_name,
    positive,
)

__all__ = [
    "Architecture", "ConfigError", "DataConfig", "Execution", "ExperimentConfig", "InitConfig", "LayerConfig", "LayerKind",
    "MeshConfig", "ModelConfig", "NormConfig", "OptimizerConfig", "StackConfig", "TokenizerConfig", "TrainConfig",
    "all_among", "among", "check_family", "choose_plugins", "fingerprint", "from_config_dict", "instance", "not_negative",
    "optional_plugin", "plugin", "plugin_name", "positive", "to_config_dict",
]  # fmt: skip
