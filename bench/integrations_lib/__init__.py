"""The parts of bench/integrations.py: one module per library, how a run is measured, the report."""
