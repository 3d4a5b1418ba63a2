"""The tables of docs/ that repeat the code, one function for each."""
