"""The gateway's server for browsers: the page, the program, invitations and streams."""
