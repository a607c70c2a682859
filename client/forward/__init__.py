"""Forward engines: rows in, scores out."""
