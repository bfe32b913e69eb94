"""What a person types and reads: commands, options, completion, and text that a terminal shows as it is."""
