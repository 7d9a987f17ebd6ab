"""Training, scoring and prediction of any task; it names no task."""
