"""Test doubles of the file layer, and the model of what a run's folder has to keep."""
