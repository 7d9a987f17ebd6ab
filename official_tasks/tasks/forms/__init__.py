"""Read rows and texts from files, knowing no example and no task."""
