"""Other people's weights, in and out; nothing in a file is ever executed."""
