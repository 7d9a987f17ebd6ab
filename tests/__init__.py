"""Tests, in folders as the packages; `support` has what they share."""
