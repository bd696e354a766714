# page
from unittest.mock import MagicMock

# In place of the libraries: tests/integrations/test_metrics.py runs the page's observers with them.
writer = run = client = gauge = MagicMock()
registry = run_id = write_to_textfile = MagicMock()
