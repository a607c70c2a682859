"""Views of a run's `RunStatus`: terminal, web page, and metrics."""
