"""Where a module's activations live, as its execution record says."""

from flaxformer_lite.config import Execution
from flaxformer_lite.functions.sharding import UNSHARDED, ActivationSharding


def sharding_of(execution: Execution) -> ActivationSharding:
    """The sharding that a trainer has put into the record; without one everything is whole on one device."""
    return execution.sharding or UNSHARDED
