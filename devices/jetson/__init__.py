"""Support for NVIDIA's Jetson boards: sensors, installation script, container, service."""
