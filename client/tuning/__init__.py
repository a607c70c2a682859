"""Tuning on one device, without a federation: settings, data, learners, and the run itself."""
