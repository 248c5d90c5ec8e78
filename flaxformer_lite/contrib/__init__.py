"""Packages for few users or for other tools' formats, each on the core's public interface.

Nothing of the core imports it. The core finds what a package adds by name, in a folder of the
package that is called after its kind:

    attentions/      values of `model.attention`
    commands/        commands of `flaxformer_lite` (cli/commands/declare.py)
    mixers/          values of `model.mixer.name`
    models/          families (models/__init__.py)
    objectives/      values of `objective.name`
    readers/         checkpoints of other programs (pretrained/folder.py)
    tokenizer_files/ tokenizers of folders without a tokenizer.json (text/older_files.py)
    tokenizers/      tokenizers of families with their own (pretrained/tokenizer.py)

Each package says in its first lines what it was tested against, and what not. Deleting a package
takes away what it adds, and nothing else.
"""
