"""What every engine is asked of a folder."""

TEXTS = (
    "The capital of France is",
    "naïve 日本 🎉 café",
    "  two  spaces\n\tand a tab\n",
    "I'll say 12345 or <|im_end|> if you've asked",
    "One fish, two fish. " * 10,  # longer than any window of the folders
)
CHAT = [{"role": "user", "content": "What is the capital of France?"}]
NEW_TOKENS = 24
TOLERANCE = 1e-3  # of the largest logit
# of models that were trained here
ASKED = ("What is the capital of Italy?", "What is the capital of Chile?")
SENTENCES = ("I loved every minute of this opera.", "What a waste of an evening!", "naïve café")
TAGGED = ("They flew to Lima in Peru yesterday", "She lives in Oslo")
