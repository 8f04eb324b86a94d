"""The explorer: both theories in a browser, with sliders (`thermoformer explore`)."""
