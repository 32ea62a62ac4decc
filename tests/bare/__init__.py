"""Environments other than ours: bare machines and containers on which torch runs, and taskd's behaviour there.

`bash scripts/bare.sh --json` plays them all; `--list` names them, `--only TEXT` plays some.

Rules:

1. An environment is data: a name, a snippet of bash that makes it, and a trial. Bare machines are in `jobs_bare.py`,
   containers and settings in `jobs_contained.py`, programs under LD_PRELOAD in `gates.py`, the wheel in `wheels.py`.
   The snippet runs in namespaces of its own where it mounts anything.
2. The installation is the one that our pages require: torch with its own needs, and the wheel of this checkout. It has
   no numpy. torch's files are linked from `.venv`, which takes seconds. Stock torchrun's installation has no taskd.
3. A job trains twice: under stock torchrun, then with taskd. Stock torchrun's status, digest and time are the bound.
4. taskd's claim is its output on the console. A job without a refusal there counts as protected: rank 1 kills itself,
   and must be replaced in place. A job with a refusal must end as under stock torchrun.
   The refusal is one sentence, and is printed before the script runs in any rank.
5. Root file systems come from debootstrap and stay in `~/.cache/taskd-bare`. apt-get installs programs that the
   machine lacks. If it fails, the environment fails with the reason.
"""
