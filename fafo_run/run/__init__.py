"""What a run does: producer, dispatcher and completer, which speak through the logs, and who starts them."""
