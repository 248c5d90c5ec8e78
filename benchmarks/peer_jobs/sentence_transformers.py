"""sentence-transformers, by torch, and by ONNX Runtime with `EMBEDDER.onnx`."""

from pathlib import Path

from benchmarks.peer_jobs import TEXTS, Case, Work, draw_texts


def folder_of(case: Case) -> str:
    return f"{case.embedder}.onnx"


def convert(case: Case) -> None:
    """Exports the embedder, unless that is done."""
    from sentence_transformers import SentenceTransformer

    if not Path(folder_of(case)).exists():
        SentenceTransformer(case.embedder, backend="onnx").save_pretrained(folder_of(case))


def embed_by(folder: str, backend: str, **options: object) -> Work:
    from sentence_transformers import SentenceTransformer

    # on a GPU where torch has one
    encoder = SentenceTransformer(folder, backend=backend, model_kwargs=options)
    texts = draw_texts(TEXTS)
    return lambda: encoder.encode(texts)


def embed(case: Case) -> Work:
    return embed_by(case.embedder, "torch")


def embed_onnx(case: Case) -> Work:
    import onnxruntime

    # It counts the machine's cores, and not those that the process may use.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = case.threads
    return embed_by(folder_of(case), "onnx", session_options=options)


JOBS = {"embed": embed}
ONNX = {"embed": embed_onnx}
