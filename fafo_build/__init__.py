"""The build half of fafo: declarations in, baked artifacts and a lock out. Knows nothing of runs or
engines.
"""
