"""Looking at a run: its progress while it goes on, its state from outside, one item whole. Changes
nothing.
"""
