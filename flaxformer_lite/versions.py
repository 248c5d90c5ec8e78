"""Warns if jax or flax is newer than the versions that were tested.

The package sets no upper bound on either.
"""

import functools
import importlib.metadata
import logging
import re

LOG = logging.getLogger("flaxformer_lite")
# The newest minor releases that were tested; `make canary` tries newer ones.
TESTED = {
    "jax": (0, 12),
    "flax": (0, 12),
}


@functools.cache
def notice_untested() -> None:
    """Logs a warning, once per process, for each library that is newer than tested."""
    for name, tested in TESTED.items():
        version = importlib.metadata.version(name)
        if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) > tested:
            known = ".".join(map(str, tested))
            LOG.warning(
                "%s %s is newer than %s, the last version tested; if it fails: pip install"
                " '%s<%s.%s'",
                name,
                version,
                known,
                name,
                tested[0],
                tested[1] + 1,
            )
