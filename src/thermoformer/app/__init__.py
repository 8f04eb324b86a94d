"""The explorer: both theories in the browser."""
