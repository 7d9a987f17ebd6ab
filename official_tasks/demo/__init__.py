"""The whole job on real text in a few minutes."""
