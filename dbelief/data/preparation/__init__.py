"""What `dbelief data` makes training data from: photographs, faces, speech."""
