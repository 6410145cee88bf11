"""The run half of fafo: sources to queue, queue to engine, engine to results, and the proof over them."""
