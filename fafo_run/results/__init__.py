"""The log of what came back: outputs and failures, and the index over them."""
