"""From the state that the caller gives to the batch that the C++ side saves."""
