"""Addresses, certificates, invitations, and limits on requests from strangers."""
