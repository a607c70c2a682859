"""Tables of the papers beside what is measured or predicted here."""
