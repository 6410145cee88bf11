"""Segments: format, writer, reader, recovery, locking. It knows nothing of prompts, models or engines."""
