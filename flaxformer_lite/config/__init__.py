"""What an experiment is: frozen records, and the one door where a ConfigDict is checked and becomes them."""

from flaxformer_lite.config.architecture import ModelConfig
from flaxformer_lite.config.experiment import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    fingerprint,
    from_config_dict,
    plugin_name,
    to_config_dict,
)
from flaxformer_lite.config.rules import ConfigError, among, not_negative, plugin, positive

__all__ = [
    "ConfigError", "DataConfig", "ExperimentConfig", "MeshConfig", "ModelConfig", "OptimizerConfig", "TokenizerConfig",
    "TrainConfig", "among", "fingerprint", "from_config_dict", "not_negative", "plugin", "plugin_name", "positive",
    "to_config_dict",
]  # fmt: skip
