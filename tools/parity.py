"""The parity table: every family and head, in both directions, also after a step of training.

    # torch: other weights and sizes; or use tests/fixtures
    python tools/make_fixtures.py --out /tmp/fresh --seed 7
    # JAX: load, compare, step, save
    python tools/parity.py ours /tmp/fresh /tmp/exported
    # torch: load what was saved, compare
    python tools/parity.py theirs /tmp/exported

`ours` compares with what torch transformers computed when the fixtures were made, in float32 and
bfloat16, then writes two checkpoints of each: as loaded, and after one step. `theirs` loads both
into transformers, where no tensor may be missing, left over or of another shape, and compares with
what we computed. Errors are the largest difference relative to the largest value, where
attention_mask is 1. The exit status is 1 where any float32 error exceeds the tolerance.
"""

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

TOLERANCE = 1e-5
Arrays = dict[str, np.ndarray]


def main() -> None:
    """Prints a row for each fixture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("side", choices=("ours", "theirs"))
    parser.add_argument(
        "folders", type=Path, nargs="+", help="fixtures and where to export; or what was exported"
    )
    parser.add_argument("--only", default="", help="fixtures whose name begins so")
    options = parser.parse_args()
    manifest = json.loads((options.folders[0] / "manifest.json").read_text())
    rows = {
        name: row for name, row in manifest["fixtures"].items() if name.startswith(options.only)
    }
    worst = 0.0
    columns = ("float32", "bfloat16") if options.side == "ours" else ("loaded", "stepped")
    print(f"{'':42s} {columns[0]:>9s} {columns[1]:>9s}")
    for name, row in rows.items():
        run = ours if options.side == "ours" else theirs
        errors = run(
            options.folders[0] / name, row, *(folder / name for folder in options.folders[1:])
        )
        print(f"{name:42s} {errors[0]:9.1e} {errors[1]:9.1e}", flush=True)
        worst = max(worst, errors[0] if options.side == "ours" else max(errors))
    if options.side == "ours":
        (options.folders[1] / "manifest.json").write_text(json.dumps({"fixtures": rows}))
    print(f"largest float32 error {worst:.1e}, of {len(rows)} fixtures")
    sys.exit(worst > TOLERANCE)


def ours(fixture: Path, row: dict[str, Any], out: Path) -> tuple[float, float]:
    """Loads, compares, takes a step, saves."""
    import jax
    import jax.numpy as jnp

    from flaxformer_lite import load_pretrained, save_pretrained

    with np.load(fixture / "expected.npz") as file:
        stored = dict(file)

    @functools.partial(jax.jit, static_argnums=(0, 2))
    def run(model: Any, params: Any, case: str) -> Arrays:
        output = model.apply({"params": params}, **part(stored, f"{case}/in/"))
        fields = {key: getattr(output, key) for key in part(stored, f"{case}/out/")}
        return {key: value.astype(jnp.float32) for key, value in fields.items()}

    errors = []
    for dtype in ("float32", "bfloat16"):
        model, params = load_pretrained(fixture, dtype=dtype)
        cases = {case: run(model, params, case) for case in row["cases"]}
        errors.append(
            max(error(cases[c], part(stored, f"{c}/out/"), part(stored, f"{c}/in/")) for c in cases)
        )

    model, params = load_pretrained(fixture)
    case = row["cases"][0]
    loss = lambda p: sum(jnp.mean(jnp.square(x - 1)) for x in run(model, p, case).values())  # noqa: E731
    grads = jax.jit(jax.grad(loss))(params)
    largest = max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(grads))
    stepped = jax.tree.map(lambda p, g: p - 0.02 / largest * g, params, grads)
    for kind, weights in (("loaded", params), ("stepped", stepped)):
        save_pretrained(out / kind, model, weights)
        np.savez(
            out / kind / "outputs.npz",
            **{f"in/{k}": v for k, v in part(stored, f"{case}/in/").items()},
            **{f"out/{k}": v for k, v in run(model, weights, case).items()},
        )
    return errors[0], errors[1]


def theirs(folder: Path, row: dict[str, Any]) -> tuple[float, float]:
    """Loads both checkpoints into transformers, strictly, and compares."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    errors = []
    for kind in ("loaded", "stepped"):
        cls = getattr(transformers, row["architecture"])
        model, info = cls.from_pretrained(
            folder / kind,
            output_loading_info=True,
            attn_implementation="eager",
            dtype=torch.float32,
        )
        faults = {what: names for what, names in info.items() if names}
        if faults:
            sys.exit(f"{folder / kind}: transformers reports {faults}")
        with np.load(folder / kind / "outputs.npz") as file:
            stored = dict(file)
        inputs = part(stored, "in/")
        with torch.no_grad():
            output = model.eval()(
                **{key: torch.tensor(value).long() for key, value in inputs.items()}
            )
        errors.append(
            error(
                part(stored, "out/"), {k: output[k].numpy() for k in part(stored, "out/")}, inputs
            )
        )
    return errors[0], errors[1]


def part(arrays: Arrays, prefix: str) -> Arrays:
    return {
        key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)
    }


def error(got: Arrays, due: Arrays, inputs: Arrays) -> float:
    """Returns the largest difference of any field, relative to its largest value, where the mask is
    1."""
    worst = 0.0
    for field, array in due.items():
        decoder = "decoder_input_ids" in inputs and field != "encoder_last_hidden_state"
        mask = inputs.get("decoder_attention_mask" if decoder else "attention_mask")
        kept = np.ones(array.shape[:1], bool)
        if mask is not None and array.ndim >= 2 and array.shape[:2] == mask.shape:
            kept = mask == 1
        worst = max(
            worst,
            float(np.abs(np.asarray(got[field]) - array)[kept].max() / np.abs(array[kept]).max()),
        )
    return worst


if __name__ == "__main__":
    main()
