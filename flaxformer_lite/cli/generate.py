"""Generates text from prompts, to stdout."""

import argparse
import dataclasses
import json
from pathlib import Path

import flax.linen as nn

from flaxformer_lite import registry
from flaxformer_lite.cli import command_line, fill_mask
from flaxformer_lite.cli.open_model import (
    Opened,
    folder_of,
    open_named_model,
    print_notice,
    print_warnings,
)
from flaxformer_lite.config import ConfigError
from flaxformer_lite.files.read import Json
from flaxformer_lite.inference.engine import is_encoder_decoder
from flaxformer_lite.inference.generate import generate, stream
from flaxformer_lite.inference.prepare_weights import prepare_weights
from flaxformer_lite.inference.prompts import check_token_ids, ids_without_text, max_tokens
from flaxformer_lite.inference.published import DRAWS, read_settings
from flaxformer_lite.inference.settings import Settings, make_settings
from flaxformer_lite.model_folder import find_run_config, is_workdir
from flaxformer_lite.pretrained import chat, folder, hf_config
from flaxformer_lite.types import Params

NEW_TOKENS = 64  # the default number of tokens to generate
SEARCH = ("num_beams", "length_penalty", "early_stopping")  # settings of beam search
# flags that are settings of the library's `generate`
SETTINGS = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "num_beams")
# other flags that only writing has
WRITES = ("stop", "stream", "chat", "system", "chat_variable", "draft", "matmul", "cache")
GUESSES = ("prompt_lookup_num_tokens", "num_assistant_tokens")
UNFINISHED = "\ufffd"  # the character that an incomplete one is decoded to


def run(args: argparse.Namespace) -> None:
    """Writes a continuation of each prompt, or guesses its masked words."""
    options = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
    settings = _read_settings(args.set)
    where = folder_of(args.model)
    if _is_encoder(where, args):
        unused = [f"--{name}" for name in options if name != "top_k"]
        unused += [f"--{name}" for name in WRITES if getattr(args, name)]
        unused += [f"--set {name}" for name in settings]
        if unused:
            raise ConfigError(
                f"{unused[0]}: is for models that write, and this one guesses masked words; leave"
                " it out."
            )
        fill_mask.print_guesses(args, where, list(map(_text, args.prompt)))
        return
    options |= settings
    # raises on bad values, before reading
    make_settings(**{"max_new_tokens": NEW_TOKENS} | options)
    if args.stream and (len(args.prompt) > 1 or options.get("num_return_sequences", 1) > 1):
        raise ConfigError(
            "--stream: prints one text at a time; leave it out, or pass a single --prompt."
        )
    for name in ("system", "chat_variable"):
        if getattr(args, name) and not args.chat:
            raise ConfigError(f"--{name}: needs a conversation; add --chat.")
    chat.read_variables(args.chat_variable, "--chat_variable")  # raises before reading
    if "num_assistant_tokens" in options and args.draft is None:
        raise ConfigError("--set num_assistant_tokens: needs a draft model; add --draft.")
    opened = open_named_model(args, folder=where)
    opened = opened._replace(params=dict(prepare_weights(opened.model, opened.params)))
    if opened.tokenizer.chat_template and not args.chat:
        print_notice(
            "this model has a chat template; --chat uses it, and without it the prompt is continued"
            " as it is."
        )
    prompts = []
    for prompt in args.prompt:
        ids = encode(opened, _text(prompt), args)
        prompts.append(check_token_ids(opened.cfg, ids))
    options = {"max_new_tokens": default_new_tokens(opened, prompts)} | options
    if args.draft is not None:
        options["draft"] = _open_draft(args, opened)
    options = with_published(opened, options)
    if args.stop:
        options["stop_strings"] = tuple(args.stop)
        options["tokenizer"] = opened.tokenizer
    with print_warnings():
        if args.stream:
            _stream(opened, prompts, options)
        else:
            _print(opened, prompts, options)


def _read_settings(given: list[str]) -> Json:
    """Reads the settings of --set NAME=VALUE, whose values are JSON or plain text."""
    known = [field.name for field in dataclasses.fields(Settings)]
    settings: Json = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or name not in known:
            near = registry.did_you_mean(name, known) or f"; choose from {', '.join(known)}"
            raise ConfigError(f"--set {each}: must be NAME=VALUE of a setting{near}.")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings


def _is_encoder(where: Path, args: argparse.Namespace) -> bool:
    run = find_run_config(where, allow_plugins=args.allow_plugins)
    if run:
        return run.model.skeleton == "encoder"
    if args.family or not (where / "config.json").is_file():
        return False
    family = hf_config.family_of(folder.read_config(where), where)
    return family.Model.skeleton == "encoder"


def _open_draft(args: argparse.Namespace, opened: Opened) -> tuple[nn.Module, Params]:
    """Opens the draft model, as the model is.

    Raises:
      ConfigError: its tokenizer has other ids than the model's.
    """
    flags = vars(args) | {"model": args.draft, "family": None, "adapter": None}
    draft = open_named_model(argparse.Namespace(**flags))
    tokens = []
    for tokenizer in (draft.tokenizer, opened.tokenizer):
        tokens.append([tokenizer.spelling(index) for index in range(tokenizer.vocab_size)])
    if tokens[0] != tokens[1]:
        raise ConfigError(
            f"--draft {args.draft}: its tokenizer has other tokens than the model's; take a draft"
            " with the model's tokenizer."
        )
    return draft.model, draft.params


def default_new_tokens(opened: Opened, prompts: list[list[int]]) -> int:
    """Returns the default number of new tokens: NEW_TOKENS, or fewer if positions run out."""
    start = 1 if is_encoder_decoder(opened.cfg) else max(map(len, prompts))
    return max(1, min(NEW_TOKENS, max_tokens(opened.cfg) - start))


def encode(opened: Opened, text: str, args: argparse.Namespace) -> list[int]:
    """Encodes a prompt, with the special tokens of the tokenizer or of the chat template."""
    tokenizer = opened.tokenizer
    if args.chat:
        system = [{"role": "system", "content": args.system}] if args.system is not None else []
        turns = [*system, {"role": "user", "content": text}]
        variables = chat.read_variables(args.chat_variable, "--chat_variable")
        return chat.encode(tokenizer, turns, variables)
    ids = tokenizer.encode(text)
    if not ids and "bos" in tokenizer.ids:
        return [tokenizer.ids["bos"]]  # an empty prompt
    if not ids:
        raise ConfigError("--prompt: is empty, and this model has no token that starts a text.")
    return ids


def with_published(opened: Opened, options: Json) -> Json:
    """Adds the settings of the model's directory to those of the user, which take precedence.

    Settings of the directory that contradict the user's are left out: for sampling if the user asks
    for beam search or greedy decoding, for beam search if the user sets a temperature or
    asks for guesses.
    """
    try:
        published = read_settings(opened.folder)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    excluded: tuple[str, ...] = ()
    if options.get("num_beams", 1) > 1 or options.get("temperature") == 0:
        excluded += tuple(DRAWS)
    if any(options.get(name) for name in ("temperature", "draft", *GUESSES)):
        excluded += SEARCH
    published = {name: value for name, value in published.items() if name not in excluded}
    applied = []
    for name, value in published.items():
        if "token" not in name and name not in options:
            applied.append(f"{name}={value}")
    if applied:
        print_notice(f"settings of this model: {', '.join(applied)}")
    tokenizer = opened.tokenizer
    vocab = opened.cfg.of_decoder.vocab_size
    defaults: Json = {"pad_token_id": min(tokenizer.pad_id, vocab - 1)}
    starts = opened.cfg.decoder_start_token_id is not None
    if is_encoder_decoder(opened.cfg) and not starts and is_workdir(opened.folder):
        defaults["decoder_start_token_id"] = defaults["pad_token_id"]  # as in training
    if "eos" in tokenizer.ids:
        defaults["eos_token_id"] = tokenizer.ids["eos"]
    without_text = ids_without_text(opened.cfg, tokenizer)
    suppressed = (*published.get("suppress_tokens", ()), *without_text)
    return defaults | published | {"suppress_tokens": suppressed} | options


def _print(opened: Opened, prompts: list[list[int]], options: Json) -> None:
    result = generate(opened.model, opened.params, prompts, return_scores=True, **options)
    new = result.lengths.max()
    for number, (row, length) in enumerate(zip(result.sequences, result.lengths, strict=True)):
        start = row.shape[0] - new
        text = opened.tokenizer.decode(row[start : start + length])
        if len(result.sequences) > 1:
            text = f"[{number + 1}] {text}"
        command_line.print_text(text)


def _stream(opened: Opened, prompts: list[list[int]], options: Json) -> None:
    ids = []
    shown = ""
    for new in stream(opened.model, opened.params, prompts, **options):
        ids += new[0].tolist()
        text = opened.tokenizer.decode(ids)
        if not text.endswith(UNFINISHED) and text.startswith(shown):
            command_line.print_text(text[len(shown) :], end="")
            shown = text
    command_line.print_text(opened.tokenizer.decode(ids)[len(shown) :])


def _text(prompt: str) -> str:
    if prompt == "-":
        return command_line.read_text("-", "--prompt -").rstrip("\n")
    return prompt
