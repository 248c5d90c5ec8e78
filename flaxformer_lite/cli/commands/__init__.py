"""The commands: their summaries, examples and flags.

Each is implemented by `run` in the file of its name, one folder up; contrib's are found in
its packages and say where. These files import no jax, so that `--help` takes 0.1 CPU seconds; to
import the file of a command takes 1.2 (on an AMD EPYC).
"""

from flaxformer_lite import registry
from flaxformer_lite.cli.commands import models, texts, training
from flaxformer_lite.cli.commands.declare import Command
from flaxformer_lite.runtime import invocation

CONFIG_HELP = "a page (gpt2_tiny, gpt2_tiny:rope) or your own file; add --help to list its fields"


# in the order in which --help lists them
EVERYDAY: dict[str, Command] = {
    "train": training.train,
    "data": training.data,
    "evaluate": models.evaluate,
    "predict": models.predict,
    "generate": texts.generate,
    "embed": texts.embed,
    "convert": models.convert,
    "inspect": models.inspect,
    "steps": training.steps,
}
COMMANDS = dict(EVERYDAY)  # and contrib's
for _name in registry.available("commands"):
    COMMANDS[_name.replace("_", "-")] = getattr(registry.resolve("commands", _name), _name)


def examples(*names: str, most: int | None = None) -> str:
    """Returns examples of commands, at most `most` of each, as this program was started."""
    shown = ["examples:"]
    for name in names:
        program = invocation.program(name)
        for example in COMMANDS[name].examples[:most]:
            spelled = f"flaxformer_lite {name}"
            line = example if spelled in example else f"{spelled} {example}"
            shown.append(f"  {line}".replace(spelled, program))
    return "\n".join(shown)
