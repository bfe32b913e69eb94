"""Files of data, by path or by URL: how they are found, opened, fetched from a store of objects, and read."""
