"""Prints a script for bash and zsh that completes commands, flags, pages and choices."""

import argparse
from collections.abc import Sequence

from flaxformer_lite import pages, private_names
from flaxformer_lite.cli.commands import COMMANDS

SCRIPT = """
_flaxformer_lite() {{
  local command="${{COMP_WORDS[1]}}" last="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  local current="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$current" = "=" ]; then
    current=""
  elif [ "$last" = "=" ]; then
    last="${{COMP_WORDS[COMP_CWORD-2]}}"
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "$command $last" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o bashdefault -o default -F _flaxformer_lite flaxformer_lite
"""
ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit"


def run(args: argparse.Namespace) -> None:
    """Prints the script, made from the commands' own parsers."""
    if args.shell == "zsh":
        print(ZSH)
    print(script().strip())


def script() -> str:
    """Returns the script for bash, which zsh reads too."""
    cases: list[str] = []
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser(allow_abbrev=False)
        command.add_arguments(parser)
        flags: list[str] = []
        for action in private_names.flags(parser):
            flags += [flag for flag in action.option_strings if flag.startswith("--")]
            if action.choices:
                choices = list(map(str, action.choices))
                for flag in action.option_strings:
                    cases.append(_case(f'"{name} {flag}"', choices))
        if command.takes_config:
            cases.append(_case(f'"{name} --config"', pages.names()))
            flags.append("--config")
        words = list[str]()
        for action in private_names.flags(parser):
            words += _positional(action)
        cases.append(_case(f'"{name} "*', [*words, *sorted(flags), "--debug", "--allow_plugins"]))
    return SCRIPT.format(commands=" ".join(COMMANDS), cases="\n".join(cases))


def _positional(action: argparse.Action) -> Sequence[str]:
    if action.option_strings:
        return ()
    return list(map(str, action.choices or ()))


def _case(pattern: str, words: Sequence[str]) -> str:
    return f'      {pattern}) words="{" ".join(words)}" ;;'
