"""Classes become artifacts and a lock. Brings together what `render` and `tokens` know; nothing of runs."""
