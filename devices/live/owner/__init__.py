"""The owner's side of a live client: questions, examples, deletion, moving."""
