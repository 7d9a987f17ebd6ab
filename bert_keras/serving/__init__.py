"""One SavedModel that takes raw strings: written, checked and called."""
