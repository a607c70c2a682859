"""The rounds of a run: who is asked, what is asked, and what the replies change."""
