"""Pre-training: settings, data, objectives, one run."""
