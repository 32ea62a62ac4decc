"""The process that forks standbys: `python -u -m taskd.python.template`, started by the agent."""

from taskd.adaptors.torchrun.standby import template_main

if __name__ == "__main__":
    template_main()
