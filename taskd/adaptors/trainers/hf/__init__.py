"""Recovery in place for Hugging Face's Trainer, and for trainers made from it.

Rules:

1. The set-up of `train()` runs in every process, a new one too: model wrapped, optimizer made, callbacks called. The
   epochs run inside one resilient function, which goes on in the middle of an epoch (see `run`).
2. A step is committed after the callbacks for its end. The work until the next step is a log, evaluation, checkpoint,
   or an epoch's end. After a fault in it all ranks do it again, from the trainer's values at the commit (see `taken`).
   Loggers do not get a line twice (see `logged_lines`).
3. Some values differ from rank to rank: the sum of losses since the last log, the place in the data. Each rank keeps
   its own (see `own`, `loader`).
4. Order of the data and random numbers are those of the plain library.
"""
