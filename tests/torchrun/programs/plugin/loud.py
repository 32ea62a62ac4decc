"""Another package that names the place of the logs."""

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs


class LoudLogsSpecs(DefaultLogsSpecs):
    def reify(self, envs):
        destination = super().reify(envs)
        for rank, file in destination.stdouts.items():
            destination.stdouts[rank] = destination.tee_stdouts[rank] = file.replace("stdout", "loud")
        return destination
