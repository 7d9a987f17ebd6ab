"""Training, scoring and prediction of any task."""
