"""What is particular to NVIDIA's Jetson boards."""
