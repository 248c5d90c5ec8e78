"""MaxSim, the similarity of texts that have a vector for each token."""

import jax
import jax.numpy as jnp

MAX_SIMILARITIES = 1 << 24  # of tokens, float32, that exist at a time
EMPTY_SIMILARITY = -1e30  # the similarity of a document without vectors


def maxsim(
    query_QTD: jax.Array,
    query_mask_QT: jax.Array,
    document_MSD: jax.Array,
    document_mask_MS: jax.Array,
    *,
    most: int = MAX_SIMILARITIES,
) -> jax.Array:
    """Computes sum_t max_s query_t . document_s of all pairs, float32 [Q, M].

    The similarities of tokens exist for some documents at a time, also in the backward pass.

    Args:
      query_QTD, document_MSD: vectors of tokens, usually of length one.
      query_mask_QT, document_mask_MS: nonzero for the tokens that count.
      most: number of similarities of tokens that exist at a time; at least those of one document.

    Reference: Khattab and Zaharia 2020, "ColBERT" (arXiv:2004.12832).
    """
    queries, tokens, _ = query_QTD.shape
    documents, length, width = document_MSD.shape
    size = max(1, min(documents, most // max(1, queries * tokens * length)))
    count = -(-documents // size)
    missing = count * size - documents
    padded_MSD = jnp.pad(document_MSD, ((0, missing), (0, 0), (0, 0)))
    real_MS = jnp.pad(document_mask_MS.astype(bool), ((0, missing), (0, 0)))
    chunks_NCSD = padded_MSD.reshape(count, size, length, width)
    real_NCS = real_MS.reshape(count, size, length)
    counts_QT = query_mask_QT.astype(bool)

    @jax.checkpoint
    def score(item: tuple[jax.Array, jax.Array]) -> jax.Array:
        document_CSD, real_CS = item
        similar_QTCS = jnp.einsum(
            "QTD,CSD->QTCS",
            query_QTD.astype(jnp.float32),
            document_CSD.astype(jnp.float32),
            # As in pooling.py.
            precision=jax.lax.Precision.HIGHEST,
        )
        kept_QTCS = jnp.where(real_CS[None, None], similar_QTCS, EMPTY_SIMILARITY)
        best_QTC = jnp.where(counts_QT[:, :, None], kept_QTCS.max(axis=-1), 0.0)
        return jnp.where(real_CS.any(axis=-1)[None], best_QTC.sum(axis=1), EMPTY_SIMILARITY)

    scores_NQC = jax.lax.map(score, (chunks_NCSD, real_NCS))
    return jnp.swapaxes(scores_NQC, 0, 1).reshape(queries, -1)[:, :documents]
