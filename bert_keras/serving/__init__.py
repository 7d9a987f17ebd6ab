"""Write, check and call a SavedModel that takes raw strings."""
