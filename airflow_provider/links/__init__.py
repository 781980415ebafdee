"""Links on the task instance's page."""
