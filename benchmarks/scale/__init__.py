"""Measurements with many clients, phones and rounds."""
