"""Writes a page of what a model computes on one text."""

import argparse
import textwrap
from typing import Any

import jax

from flaxformer_lite.cli.generate import with_published
from flaxformer_lite.cli.open_model import (
    Opened,
    open_named_model,
    print_notice,
)
from flaxformer_lite.config import ConfigError
from flaxformer_lite.contrib.look.page import render
from flaxformer_lite.contrib.look.summary import Inside, look_inside
from flaxformer_lite.files.publish import write_file
from flaxformer_lite.inference.generate import generate
from flaxformer_lite.inference.inside.lens import running_stacks
from flaxformer_lite.inference.task import check_token_ids, max_tokens


def run(args: argparse.Namespace) -> None:
    """Writes the page."""
    for flag, text in (("text", args.text), ("target", args.target)):
        if text is not None and not text.strip():
            raise ConfigError(f"--{flag}: is empty; pass the words to look at.")
    opened = open_named_model(args)
    ids = encode(opened, args.text, "text", args.max_tokens)
    target = target_of(opened, ids, args)
    special = opened.tokenizer.ids
    options = {
        "top_k": args.top_k,
        "vocab_size": opened.tokenizer.vocab_size,
        "prefix": args.prefix_lm,
        "mask_id": special.get("mask"),
    }
    inside = look_inside(
        opened.model, opened.params, ids, target, special=tuple(special.values()), **options
    )
    title = f"{opened.folder.resolve().name}: {textwrap.shorten(args.text, 80, placeholder=' ...')}"
    write_file(args.output, render_page(inside, opened, title).encode())
    print(f"{args.output}: {args.output.stat().st_size / 1000:,.0f} kB")


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
            f"--{flag} has {len(ids)} tokens and is cut at {limit}; --max_tokens allows more where"
            " the model does."
        )
    return opened.tokenizer.encode(text, max_length=limit, **options)


def target_of(opened: Opened, ids: list[int], args: argparse.Namespace) -> list[int]:
    """Returns the tokens of --target; by default the greedy answer of an encoder-decoder."""
    stacks = running_stacks(opened.model)
    room = max_tokens(opened.cfg) - len(ids)
    if args.prefix_lm and stacks != ("decoder",):
        raise ConfigError(
            f"--prefix_lm: needs a decoder-only model, but {opened.cfg.family} has an encoder;"
            " leave it out."
        )
    if args.target is not None and stacks == ("encoder",):
        raise ConfigError(f"--target: {opened.cfg.family} has no decoder to read it; leave it out.")
    if args.target is not None and stacks == ("decoder",):
        if not room:
            return []
        limit = min(args.max_tokens, room)
        return encode(opened, args.target, "target", limit, special_tokens=False)
    if args.target is not None:
        return encode(opened, args.target, "target", args.max_tokens)
    if len(stacks) == 1:
        return []
    if opened.cfg.head not in opened.model.vocab_heads:
        return ids  # without a head there is no answer; the decoder reads the text, as BART's does
    most = min(args.max_tokens, max_tokens(opened.cfg) - 1)
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
