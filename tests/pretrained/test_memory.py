"""Loading takes little memory beside the weights themselves."""

import subprocess
import sys

from flaxformer_lite import save_pretrained
from tests.models.tiny import built, small

PEAK = """
import resource, sys
import jax, jax.numpy as jnp
import flaxformer_lite.open_model
jnp.ones(3).block_until_ready()

def peak():
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    # getrusage counts what the process had before exec, too
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

before = peak()
_, params = flaxformer_lite.load_pretrained(sys.argv[1])
held = sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / 2**20
print(held, peak() - before)
"""


def test_the_file_and_a_copy_are_never_in_memory_together(tmp_path):
    cfg = small("llama", decoder_layers=3, d_model=256, mlp_dim=12288, vocab_size=16384)
    save_pretrained(tmp_path / "model", *built(cfg))
    command = [sys.executable, "-c", PEAK, str(tmp_path / "model")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    held, taken = map(float, run.stdout.split())
    assert held > 120
    assert taken < 1.5 * held, (held, taken)
