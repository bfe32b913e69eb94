"""Sets of samples that are read unit by unit: a row group of a file, or a range of indices."""
