"""What a training state is made of, and how each kind of part is captured and put back."""
