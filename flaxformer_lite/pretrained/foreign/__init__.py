"""Readers of other programs' checkpoints, one program per file.

A reader maps the arrays of a folder to the names, and its config to the config.json, that
transformers writes for the same model; the rest is that of published weights. It defines

    FORM                           what it reads, in a word or two
    find(folder)                   the folder that holds the checkpoint, or None
    describe(place)                lines that say what was found, and what was assumed
    read_config(place)             the config.json of transformers
    open_weights(place, config)    the tensors, by the names of transformers
    write_tokenizer(place, made)   (optional) the files of its tokenizer, as transformers names them

where `place` is what `find` returned. Readers are imported only for folders without files of
transformers.
"""

SHARED = (
    "arranged",
    "keras_hub_kinds",
    "keras_hub_tokenizer",
    "orbax_arrays",
    "t5x_bert",
    "t5x_decoder",
    "t5x_layers",
    "t5x_t5",
    "yaml_files",
    "zarr_arrays",
)
