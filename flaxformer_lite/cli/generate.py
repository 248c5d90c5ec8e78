"""Text generation from prompts to stdout."""

import argparse
from typing import Any

from flaxformer_lite.cli import command_line
from flaxformer_lite.cli.arguments import SETTINGS
from flaxformer_lite.cli.open_model import Opened, check_vocabulary, folder_of, notice, open_model
from flaxformer_lite.config import ConfigError
from flaxformer_lite.inference.engine import is_encoder_decoder
from flaxformer_lite.inference.generate import generate, stream
from flaxformer_lite.inference.published import DRAWS, read_settings
from flaxformer_lite.inference.settings import settings
from flaxformer_lite.inference.task import ids_without_text, longest
from flaxformer_lite.pretrained import chat

NEW_TOKENS = 64  # default
SEARCH = ("num_beams", "length_penalty", "early_stopping")
UNFINISHED = "\ufffd"  # how an incomplete character is decoded


def run(args: argparse.Namespace) -> None:
    """Writes a continuation of each prompt."""
    options = {}
    for name in ("max_new_tokens", *(name for name, *_ in SETTINGS)):
        if getattr(args, name) is not None:
            options[name] = getattr(args, name)
    settings(**{"max_new_tokens": NEW_TOKENS} | options)  # before a model is read
    if args.stream and (len(args.prompt) > 1 or options.get("num_return_sequences", 1) > 1):
        raise ConfigError(
            "--stream: prints one text at a time; leave it out, or pass a single --prompt."
        )
    if args.system is not None and not args.chat:
        raise ConfigError("--system: needs a conversation; add --chat.")
    opened = open_model(
        args.model,
        dtype=args.dtype,
        family=args.family,
        adapter=args.adapter,
        allow_plugins=args.allow_plugins,
    )
    if opened.tokenizer.chat_template and not args.chat:
        notice(
            "this model has a chat template; --chat uses it, and without it the prompt is continued"
            " as it is."
        )
    prompts = [
        check_vocabulary(opened, encode(opened, text, args)) for text in map(_text, args.prompt)
    ]
    options = with_published(
        args.model, opened, {"max_new_tokens": what_fits(opened, prompts)} | options
    )
    if args.stop:
        options |= {"stop_strings": tuple(args.stop), "tokenizer": opened.tokenizer}
    if args.stream:
        _stream(opened, prompts, options)
    else:
        _whole(opened, prompts, options)


def what_fits(opened: Opened, prompts: list[list[int]]) -> int:
    """Returns the default number of new tokens: NEW_TOKENS, or fewer if positions run out."""
    taken = 1 if is_encoder_decoder(opened.cfg) else max(map(len, prompts))
    return max(1, min(NEW_TOKENS, longest(opened.cfg) - taken))


def encode(opened: Opened, text: str, args: argparse.Namespace) -> list[int]:
    """Encodes a prompt with special tokens, or by the chat template, which has its own."""
    tokenizer = opened.tokenizer
    if args.chat:
        system = [{"role": "system", "content": args.system}] if args.system is not None else []
        turns = [*system, {"role": "user", "content": text}]
        return chat.encode(tokenizer, turns)
    ids = tokenizer.encode(text, allow_special=not args.literal)
    if not ids and "bos" in tokenizer.ids:
        return [tokenizer.ids["bos"]]  # an empty prompt
    if not ids:
        raise ConfigError("--prompt: is empty, and this model has no token that starts a text.")
    return ids


def with_published(path: str, opened: Opened, options: dict[str, Any]) -> dict[str, Any]:
    """Merges the user's settings over the directory's, dropping those of the directory that the
    user's exclude."""
    try:
        own = read_settings(folder_of(path))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    tokenizer = opened.tokenizer
    vocab = opened.cfg.of_decoder.vocab_size
    if options.get("num_beams", 1) > 1 or options.get("temperature") == 0:
        own = {name: value for name, value in own.items() if name not in DRAWS}
    if options.get("temperature"):
        own = {name: value for name, value in own.items() if name not in SEARCH}
    chosen = {
        name: value for name, value in own.items() if "token" not in name and name not in options
    }
    if chosen:
        notice(
            "settings of this model:"
            f" {', '.join(f'{name}={value}' for name, value in chosen.items())}"
        )
    if "eos" in tokenizer.ids:
        own = {"eos_token_id": tokenizer.ids["eos"]} | own
    own = {"pad_token_id": min(tokenizer.pad_id, vocab - 1)} | own
    never = (*own.get("suppress_tokens", ()), *ids_without_text(opened.cfg, tokenizer))
    return own | {"suppress_tokens": never} | options


def _whole(opened: Opened, prompts: list[list[int]], options: dict[str, Any]) -> None:
    result = generate(opened.model, opened.params, prompts, return_scores=True, **options)
    new = result.lengths.max()
    for number, (row, length) in enumerate(zip(result.sequences, result.lengths, strict=True)):
        start = row.shape[0] - new
        text = opened.tokenizer.decode(row[start : start + length])
        print(text if len(result.sequences) == 1 else f"[{number + 1}] {text}")


def _stream(opened: Opened, prompts: list[list[int]], options: dict[str, Any]) -> None:
    ids = []
    shown = ""
    for new in stream(opened.model, opened.params, prompts, **options):
        ids += new[0].tolist()
        text = opened.tokenizer.decode(ids)
        if not text.endswith(UNFINISHED) and text.startswith(shown):
            print(text[len(shown) :], end="", flush=True)
            shown = text
    print(opened.tokenizer.decode(ids)[len(shown) :])


def _text(prompt: str) -> str:
    return command_line.read_text("-", "--prompt -").rstrip("\n") if prompt == "-" else prompt
