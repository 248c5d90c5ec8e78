"""CTranslate2, with `WRITER.ctranslate2-FORM`, the writer that its converter wrote."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.peer_jobs import BEAMS, NEW, Case, Work, draw_prompts


def folder_of(case: Case) -> Path:
    return Path(f"{case.writer}.ctranslate2-{case.form}")


def convert(case: Case) -> None:
    """Converts the writer, unless that is done."""
    folder = folder_of(case)
    if not folder.exists():
        words = ["-m", "ctranslate2.converters.transformers", "--model", case.writer]
        words += ["--output_dir", str(folder), "--quantization", case.form]
        ran = subprocess.run([sys.executable, *words], capture_output=True, text=True)
        if ran.returncode:
            raise ImportError(f"not converted: {ran.stderr.strip().splitlines()[-1]}")


def load(case: Case) -> Work:
    import ctranslate2

    folder = str(folder_of(case))
    settings = {"intra_threads": case.threads, "compute_type": case.form}
    return lambda: ctranslate2.Generator(folder, device="cpu", **settings)


def generate(case: Case, **settings: int) -> Work:
    generator = load(case)()
    vocabulary = json.loads((folder_of(case) / "vocabulary.json").read_text())
    prompts = [[vocabulary[i] for i in row] for row in draw_prompts(case.rows)]
    settings |= {"max_length": NEW, "min_length": NEW}
    return lambda: generator.generate_batch(prompts, include_prompt_in_result=False, **settings)


def beams(case: Case) -> Work:
    return generate(case, beam_size=BEAMS)


JOBS = {"load": load, "generate": generate, "beams": beams}
