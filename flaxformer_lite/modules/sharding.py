"""Where a module's activations live, as its config says."""

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.functions.sharding import UNSHARDED, ActivationSharding


def sharding_of(cfg: ModelConfig) -> ActivationSharding:
    """The sharding that a trainer has put into the config; without one everything is whole on one device."""
    return cfg.sharding or UNSHARDED
