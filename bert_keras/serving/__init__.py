"""Writers, checks and callers of a SavedModel that takes raw strings."""
