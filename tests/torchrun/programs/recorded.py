"""A rank that fails under torch's `record`."""

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main() -> None:
    raise LookupError("for the error file")


main()
