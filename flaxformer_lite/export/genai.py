"""The description of a decoder by which onnxruntime-genai generates with its file."""

from collections.abc import Mapping

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.export.cases import PAST
from flaxformer_lite.export.programs import ExportProgram
from flaxformer_lite.files.read import Json

# The name of a plain decoder there, which decides nothing but how its inputs are made.
KIND = "llama"


def genai_config(
    file: str, program: ExportProgram, cfg: ModelConfig, ids: Mapping[str, int]
) -> Json | None:
    """Returns the content of genai_config.json; None for other caches than those of one size.

    Args:
      file: the name of the .onnx file.
      program: its program, `decode`.
      cfg: the model's config.
      ids: special tokens by role, of which it takes bos, eos and pad.
    """
    caches = [spec.shape for name, spec in program.inputs.items() if name.startswith(PAST)]
    sizes = {shape[1::2] for shape in caches}
    if len(sizes) != 1 or len(caches[0]) != 4:
        return None
    ((heads, size),) = sizes
    end = ids.get("eos", cfg.vocab_size - 1)  # it needs one
    return {
        "model": {
            "type": KIND,
            "bos_token_id": ids.get("bos", end),
            "eos_token_id": end,
            "pad_token_id": ids.get("pad", end),
            "vocab_size": cfg.vocab_size,
            "context_length": cfg.max_length,
            "decoder": {
                "session_options": {"provider_options": []},
                "filename": file,
                "head_size": size,
                "hidden_size": cfg.d_model,
                "num_attention_heads": cfg.num_heads,
                "num_key_value_heads": heads,
                "num_hidden_layers": cfg.decoder_layers,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {
            "max_length": cfg.max_length,
            "do_sample": False,
            "past_present_share_buffer": False,
        },
    }
