"""Everything that only a GPU can tell, part by part, by one command."""
