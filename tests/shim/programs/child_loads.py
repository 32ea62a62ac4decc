"""A worker whose children are a DataLoader's, of every kind there is, and write in every way there is."""

import torch.utils.data

from taskd.runtime.box.recorder import Recorder
from tests.shim.programs.writes import r, write


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return int(write(Recorder()))


if __name__ == "__main__":
    r.step(10)
    for method in ("fork", "forkserver", "spawn"):
        loader = torch.utils.data.DataLoader(Numbers(), num_workers=2, multiprocessing_context=method)
        assert [int(batch) for batch in loader] == [0] * 8
