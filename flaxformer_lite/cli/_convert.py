"""From any checkpoint to published weights, one tensor at a time, and all of the directory or nothing."""

import contextlib
import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tokenizers
from tokenizers import processors

from flaxformer_lite.checkpoints import workdir
from flaxformer_lite.cli._open import folder_of, notice, read_json
from flaxformer_lite.config import ConfigError
from flaxformer_lite.data import tokenizer as plain
from flaxformer_lite.data.progress import reading
from flaxformer_lite.pretrained import folder
from flaxformer_lite.pretrained.load import open_pretrained
from flaxformer_lite.pretrained.save import save_pretrained
from flaxformer_lite.pretrained.tokenizer import frame

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
ROLES = ("pad", "bos", "eos", "cls", "sep", "mask")


def convert(src: str, dst: str, *, dtype: str | None, head: str | None, shard_size: str) -> None:
    """Makes `dst`, and says in one line what it holds.

    Raises:
      ConfigError, WeightsError, CheckpointError: what cannot be read or has no published form.
    """
    source, shard_bytes = folder_of(src), _bytes_of(shard_size)
    with _new_directory(Path(dst).expanduser()) as made:
        if workdir.is_workdir(source):
            if head is not None:
                raise ConfigError(f"--head={head}: a training workdir is written with the head it was trained with.")
            model, params = _from_run(source, made, dtype)
        else:
            dtype = dtype or _stored_dtype(source)
            model, params = open_pretrained(source, head, dtype=dtype, param_dtype=dtype)
        total = sum(_size(leaf) for leaf in jax.tree.leaves(params))
        with reading(f"writing {dst}", total) as advance:
            watched = jax.tree.map(lambda leaf: _Watched(leaf, advance), params)
            save_pretrained(made, model, watched, shard_bytes=shard_bytes)
        if workdir.is_workdir(source):
            _name_tokens(made)
    cfg = model.cfg
    print(f"{dst}: {cfg.family}, head {cfg.head}, {total / 1e6:,.1f} MB in {cfg.param_dtype}")


class _Watched:
    """A parameter that says how many of its bytes are read."""

    def __init__(self, leaf: Any, advance: Callable[[int], None]):
        self.shape, self.dtype, self._leaf, self._advance = leaf.shape, leaf.dtype, leaf, advance

    def __getitem__(self, row: int) -> np.ndarray:
        self._advance(_size(self) // self.shape[0])
        return np.asarray(self._leaf[row])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        self._advance(_size(self))
        return np.asarray(self._leaf)


def _from_run(source: Path, made: Path, dtype: str | None) -> tuple[Any, dict]:
    run = workdir.read_run(source)
    for what in run.notices:
        notice(what)
    model, params = run.model, run.params
    if dtype:
        cfg = dataclasses.replace(model.cfg, dtype=dtype, param_dtype=dtype)
        model, params = model.clone(cfg=cfg), jax.tree.map(lambda x: x.astype(dtype), params)
    _publish_tokenizer(plain.load(workdir.tokenizer_folder(source)), model, made)
    return model, params


def _publish_tokenizer(inner: plain.Tokenizer, model: Any, made: Path) -> None:
    """The run's tokenizer with what training puts around a text, and the ids that writing starts and stops with."""
    ids = {role: i for role in ROLES if (i := getattr(inner, f"{role}_id")) is not None}
    is_encoder_decoder = model.skeleton == "encoder_decoder"
    generation = {f"{role}_token_id": ids[role] for role in ("pad", "bos", "eos") if role in ids}
    generation |= {"decoder_start_token_id": ids["pad"]} if is_encoder_decoder else {}
    if model.skeleton != "encoder":
        _write_json(made / "generation_config.json", generation)
    inner.save(made)
    if inner.file == "tokenizer.model" and model.cfg.family == "t5":
        (made / inner.file).rename(made / "spiece.model")
    if inner.file != "tokenizer.json":
        return
    known = tokenizers.Tokenizer.from_str(inner.definition.decode())
    if known.post_processor is None and any(framing := frame(inner, model.skeleton)):
        before, after = ([(known.id_to_token(i), i) for i in side] for side in framing)
        single = [*(token for token, _ in before), "$A", *(token for token, _ in after)]
        pair = [*single, "$B:1", *(f"{token}:1" for token, _ in after)]
        known.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=list({*before, *after})
        )
        read = json.loads(known.to_str())
        for token in read["added_tokens"]:
            token["lstrip"] |= token["content"] == "[MASK]"  # a hidden word takes its space along, as RoBERTa's <mask>
        _write_json(made / inner.file, read)
    config = {f"{role}_token": known.id_to_token(i) for role, i in ids.items()}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {"model_max_length": model.cfg.max_length} if model.cfg.has_position_table else {}
    _write_json(made / "tokenizer_config.json", config)


def _name_tokens(made: Path) -> None:
    """Into config.json too the ids that texts begin and end with: without them transformers assumes the family's usual."""
    ids = read_json(made / "generation_config.json")
    ids = {
        name: i for name, i in ids.items() if name != "pad_token_id"
    }  # a pad id there would change a model's numbers
    _write_json(made / "config.json", read_json(made / "config.json") | ids)


def _stored_dtype(source: Path) -> str:
    """That of all tensors in a directory if it is one that we compute with, else the float32 that holds any of them."""
    kinds = {str(t.array.dtype) for t in folder.open_weights(source).values() if t.array.dtype.kind not in "iub"}
    if len(kinds) == 1 and kinds <= {"float32", "bfloat16"}:
        return kinds.pop()
    notice(f"{source} holds {', '.join(sorted(kinds))}: written as float32; --dtype chooses another.")
    return "float32"


def _bytes_of(size: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?B?)", size.upper())
    unit = found and (found[2].rstrip("B") and found[2].rstrip("B") + "B")
    if not found or not float(found[1]):
        raise ConfigError(f"--shard_size={size}: a size like 500MB or 2GB.")
    return int(float(found[1]) * UNITS[unit])


def _size(leaf: Any) -> int:
    return int(np.prod(leaf.shape, dtype=np.int64)) * np.dtype(leaf.dtype).itemsize


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _new_directory(target: Path) -> Iterator[Path]:
    """A directory beside the target, which becomes the target if all goes well, and nothing otherwise."""
    if target.exists():
        raise ConfigError(f"{target}: is there already and is not overwritten; remove it or choose another DST.")
    made = target.parent / f".{target.name}.partial"
    shutil.rmtree(made, ignore_errors=True)  # of a conversion that was killed
    made.mkdir(parents=True)
    try:
        yield made
        made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
