"""The parts of a training state, and how each kind of part is captured and restored."""
