"""Tests of the package; CONTRIBUTING.md says where each is."""
