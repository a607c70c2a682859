"""Reports of finished runs, on the terminal and as an HTML page."""
