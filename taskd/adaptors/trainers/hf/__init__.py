"""Recovery in place for Hugging Face's Trainer, and for trainers made from it.

Rules:

1. The set-up of `train()` runs in every process, a new one too: model wrapped, optimizer made, callbacks told. The
   epochs run inside of one resilient function, which goes on in the middle of an epoch (see `run`).
2. A step is committed when the callbacks have heard of its end. What follows until the next step (log, evaluation,
   checkpoint, an epoch's end) is done again by all ranks after a fault in it, from what stood there at the commit (see
   `taken`). A line that was given to the loggers is not given again (see `logged`).
3. Of what differs from rank to rank (the sum of losses since the last log, the place in the data) each rank keeps its
   own (see `own`, `loader`).
4. Order of the data and random numbers are those of the plain library.
"""
