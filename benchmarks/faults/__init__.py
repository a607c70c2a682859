"""What kills, cut links and hostile clients do to a run."""
