"""The log of work that is waiting."""
