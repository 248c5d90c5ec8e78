"""Ends a run whose loss is no longer finite."""

import math
from collections.abc import Mapping

from flaxformer_lite.checkpoints.manager import Checkpoints
from flaxformer_lite.training.start.preflight import RunError
from flaxformer_lite.training.watchers.watcher import Watcher


class Finite(Watcher):
    """Raises RunError at the first step whose loss, gradient or parameters are not finite."""

    def __init__(self, checkpoints: Checkpoints):
        self._checkpoints = checkpoints

    def step_done(self, step: int, values: Mapping[str, float], seconds: float | None) -> None:
        if all(math.isfinite(values[name]) for name in ("loss", "grad_norm", "param_norm")):
            return
        good = self._checkpoints.latest_step
        where = "there is no checkpoint" if good is None else f"the last good checkpoint is step {good}"
        raise RunError(f"not finite at step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}, parameter"
                       f" norm {values['param_norm']}; {where} in {self._checkpoints.folder}. Try a lower"
                       " optimizer.learning_rate, more optimizer.warmup_steps, or optimizer.clip_norm=1 in another"
                       " --workdir.")  # fmt: skip
