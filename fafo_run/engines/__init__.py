"""Who answers: engines behind one contract, `base`. They know token ids, and neither prompts nor logs."""
