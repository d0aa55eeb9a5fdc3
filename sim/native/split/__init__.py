"""Split the statements of one thread wherever threads wait, and compile the pieces for given types."""
