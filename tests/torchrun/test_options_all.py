"""No option of the installed torchrun is left out of the comparisons."""

from torch.distributed.run import get_args_parser

from tests.torchrun import test_numa as numa
from tests.torchrun import test_options_ends as ends
from tests.torchrun import test_options_launch as started
from tests.torchrun import test_options_logs as logs
from tests.torchrun import test_options_nodes as nodes

PLAYED = (
    *(launch for table in (started.CASES, started.COLD_CASES, started.FUNCTION_CASES) for launch in table.values()),
    *(launch for table in (logs.CASES, {"specs": logs.LOGS_SPECS}) for launch in table.values()),
    *(launch for table in (ends.FAILURES, ends.SIGNALS, ends.OTHERS) for launch in table.values()),
    *(*nodes.FIXED.values(), nodes.ALONE, nodes.LATE, nodes.NOBODY, *numa.APPLIED.values()),
)


def test_every_option_is_played_with_another_value_than_its_default() -> None:
    parser = get_args_parser()
    defaults = {action.dest: action.default for action in parser._actions if action.dest != "help"}
    for launch in PLAYED:
        for node in launch.nodes:
            for name, value in vars(parser.parse_args([word.replace("{port}", "1") for word in node])).items():
                if name in defaults and value != defaults[name]:
                    del defaults[name]
    assert not defaults
