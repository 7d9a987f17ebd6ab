"""What training needs beyond `compile` and `fit`."""
