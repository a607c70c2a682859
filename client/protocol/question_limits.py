"""The models that can be asked, and the most that a question may hold."""

BASE, GLOBAL, PERSONAL = "base", "global", "personal"
MODELS = (BASE, GLOBAL, PERSONAL)
"""The models that can be asked, in the order in which they are compared."""
MAX_TEXTS = 256
"""Most texts of a question."""
MAX_TEXT_BYTES = 2**18
"""Most bytes of a text, or of the messages of a conversation together."""
MAX_CONTEXT = 32_768
"""Most tokens of a prompt and its continuation, whatever the model's context is."""
MAX_STOPS, MAX_STOP_BYTES = 16, 256
"""Most stop texts of a question, and most bytes of one."""
MAX_TEMPERATURE = 2.0
MOST_QUESTIONS = 8
"""Most questions that are open at a time; others are refused."""
