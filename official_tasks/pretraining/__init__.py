"""Pre-training: settings, data, objectives and runs."""
