"""The objectives that published heads were trained with."""

OBJECTIVES = {
    "sequence_classification": "classification",
    "token_classification": "tagging",
    "question_answering": "question_answering",
    "multiple_choice": "multiple_choice",
    "none": "sentence_embeddings",
    "encoder": "sentence_embeddings",
    "masked_lm": "masked_lm",
    "pretraining": "masked_lm",
}
OF_LM = {"decoder": "causal_lm", "encoder_decoder": "text_to_text"}  # by the skeleton


def of_head(head: str, skeleton: str) -> str:
    """Returns the name of the objective of a model's head; "" if none is known."""
    if head == "lm":
        return OF_LM.get(skeleton, "")
    return OBJECTIVES.get(head, "")
