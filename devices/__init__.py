"""What is known about devices."""
