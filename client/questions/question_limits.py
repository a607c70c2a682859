"""The models that can be asked, and the limits on questions."""

BASE, GLOBAL, PERSONAL = "base", "global", "personal"
MODELS = (BASE, GLOBAL, PERSONAL)
"""Models that can be asked, in the order of comparison."""
MAX_TEXTS = 256
"""Maximum number of texts in a question."""
MAX_TEXT_BYTES = 2**18
"""Maximum size in bytes of a text, or of all messages of a conversation together."""
MAX_CONTEXT = 32_768
"""Maximum number of tokens in a prompt and its continuation, regardless of the model's context."""
MAX_STOPS, MAX_STOP_BYTES = 16, 256
"""Maximum number of stop texts in a question, and maximum size of each in bytes."""
MAX_TEMPERATURE = 2.0
MOST_QUESTIONS = 8
"""Maximum number of open questions at a time. Further questions are refused."""
