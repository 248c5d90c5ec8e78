"""The configuration records of an experiment.

A ConfigDict is checked and turned into them in one place.
"""

from flaxformer_lite.config.architecture import (
    Architecture,
    LayerKind,
    ModelConfig,
    check_family,
    check_names,
)
from flaxformer_lite.config.execution import Execution
from flaxformer_lite.config.experiment import (
    DataConfig,
    ExperimentConfig,
    MeshConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
    required_head,
)
from flaxformer_lite.config.parsing import (
    add_sections,
    allowed_plugins,
    choose_plugins,
    fingerprint,
    from_config_dict,
    outside_plugins,
    page_plugins,
    to_config_dict,
)
from flaxformer_lite.config.parts import InitConfig, LayerConfig, NormConfig, StackConfig
from flaxformer_lite.config.rules import (
    ConfigError,
    Count,
    NotNegative,
    OneOf,
    PluginError,
    Positive,
    Record,
    Size,
    plugin_name,
)

__all__ = [
    "Architecture",
    "ConfigError",
    "Count",
    "DataConfig",
    "Execution",
    "ExperimentConfig",
    "InitConfig",
    "LayerConfig",
    "LayerKind",
    "MeshConfig",
    "ModelConfig",
    "NormConfig",
    "NotNegative",
    "OneOf",
    "OptimizerConfig",
    "PluginError",
    "Positive",
    "Record",
    "Size",
    "StackConfig",
    "TokenizerConfig",
    "TrainConfig",
    "add_sections",
    "allowed_plugins",
    "check_family",
    "check_names",
    "choose_plugins",
    "fingerprint",
    "from_config_dict",
    "outside_plugins",
    "page_plugins",
    "plugin_name",
    "required_head",
    "to_config_dict",
]
