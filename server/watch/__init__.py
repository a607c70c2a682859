"""Views of a run (terminal, web page, metrics), all made from the same `RunStatus`."""
