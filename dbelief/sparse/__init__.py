"""Tables of rows by key: how they are cut, hashed and packed."""
