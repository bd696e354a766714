"""Code that the programs of bench/ share: states, libraries, child processes, meters, reports."""
