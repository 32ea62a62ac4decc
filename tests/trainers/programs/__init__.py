"""Programs that train with a library as its documentation teaches, with taskd and without. See `scenes`."""
