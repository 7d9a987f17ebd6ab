"""How any task is trained, scored and asked; it names no task."""
