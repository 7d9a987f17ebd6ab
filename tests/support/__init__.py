"""Helpers of the tests: samples, second opinions, processes, programs."""
