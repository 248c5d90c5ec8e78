"""Writes a page of what a model computes on one text."""

import argparse
import textwrap
from pathlib import Path
from typing import Any

import jax

from flaxformer_lite.cli.generate import with_published
from flaxformer_lite.cli.open_model import (
    Opened,
    open_named_model,
    print_notice,
)
from flaxformer_lite.config import ConfigError, plugin_name
from flaxformer_lite.contrib.look.page import render
from flaxformer_lite.contrib.look.summary import Inside, look_inside
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.inference.generate import generate
from flaxformer_lite.inference.inside.lens import running_stacks
from flaxformer_lite.inference.prompts import check_token_ids, max_tokens
from flaxformer_lite.model_folder import find_run_config

TOP_K = 5  # tokens that the logit lens shows at each position


def run(args: argparse.Namespace) -> None:
    """Writes the page."""
    for flag, text in (("text", args.text), ("target", args.target)):
        if text is not None and not text.strip():
            raise ConfigError(f"--{flag}: is empty; pass the words to look at.")
    opened = open_named_model(args)
    ids = encode(opened, args.text, "text", args.length)
    target = target_of(opened, ids, args)
    special = opened.tokenizer.ids
    inside = look_inside(
        opened.model,
        opened.params,
        ids,
        target,
        special=tuple(special.values()),
        top_k=TOP_K,
        vocab_size=opened.tokenizer.vocab_size,
        prefix=_reads_both_ways(opened.folder, args),
        mask_id=special.get("mask"),
    )
    title = f"{opened.folder.resolve().name}: {textwrap.shorten(args.text, 80, placeholder=' ...')}"
    write_file(args.output, render_page(inside, opened, title).encode())
    print(f"{args.output}: {args.output.stat().st_size / 1000:,.0f} kB")


def _reads_both_ways(folder: Path, args: argparse.Namespace) -> bool:
    """Returns whether a run has trained its decoder to attend to a prefix in both directions."""
    run = find_run_config(folder, allow_plugins=args.allow_plugins)
    return run is not None and plugin_name(run.objective) == "prefix_lm"


def encode(opened: Opened, text: str, flag: str, limit: int, **options: Any) -> list[int]:
    """Encodes a text as at most `limit` tokens, or fewer if the model's positions run out.

    A truncated text gets a notice.
    """
    limit = min(limit, max_tokens(opened.cfg), opened.tokenizer.max_length or limit)
    ids = check_token_ids(opened.cfg, opened.tokenizer.encode(text, **options))
    if not ids:
        raise ConfigError(f"--{flag}: has no token of this model's tokenizer; pass other words.")
    if len(ids) > limit:
        print_notice(
            f"--{flag} has {len(ids)} tokens and is cut at {limit}; --length allows more where"
            " the model does."
        )
    return opened.tokenizer.encode(text, max_length=limit, **options)


def target_of(opened: Opened, ids: list[int], args: argparse.Namespace) -> list[int]:
    """Returns the tokens of --target; by default the greedy answer of an encoder-decoder."""
    stacks = running_stacks(opened.model)
    room = max_tokens(opened.cfg) - len(ids)
    if args.target is not None and stacks == ("encoder",):
        raise ConfigError(f"--target: {opened.cfg.family} has no decoder to read it; leave it out.")
    if args.target is not None and stacks == ("decoder",):
        if not room:
            return []
        limit = min(args.length, room)
        return encode(opened, args.target, "target", limit, special_tokens=False)
    if args.target is not None:
        return encode(opened, args.target, "target", args.length)
    if len(stacks) == 1:
        return []
    if opened.cfg.head not in opened.model.vocab_heads:
        return ids  # without a head there is no answer; the decoder reads the text, as BART's does
    most = min(args.length, max_tokens(opened.cfg) - 1)
    settings = with_published(opened, {"max_new_tokens": most, "temperature": 0, "num_beams": 1})
    answer = generate(opened.model, opened.params, [ids], return_scores=True, **settings)
    start = answer.sequences.shape[1] - int(answer.lengths[0])
    return answer.sequences[0, start:].tolist()


def render_page(inside: Inside, opened: Opened, title: str) -> str:
    """Renders the page, with what else is known of the model."""
    cfg = opened.cfg
    stacks = running_stacks(opened.model)
    facts = {
        "family": cfg.family,
        "head": cfg.head,
        "width": str(cfg.d_model),
        "heads": str(cfg.num_heads),
        "layers": " + ".join(f"{getattr(cfg, f'{side}_layers')} ({side})" for side in stacks),
        "parameters": f"{sum(x.size for x in jax.tree.leaves(opened.params)):,}",
    }
    return render(inside, opened.tokenizer.token, title=title, facts=facts)
