"""taskd's expectations of torch inside a rank, for groups, wrappers, loaders and optimizers: the worker's part."""

from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, Final

from taskd.adaptors.seams.seam import Choice, Fit, Seam, Variant
from taskd.adaptors.seams.worker_ways import (
    KeptTimeouts,
    SetTimeouts,
    Timeouts,
    abort_groups,
    abort_nccl_groups,
    fake_constructed,
    fake_made_inside,
    found_by_tag,
    known_keys,
    leave,
    listed_keys,
    resolve_by,
    skip_by_strategy,
)

_NATIVE: Final = "torch._C._distributed_c10d"
_C10D: Final = "torch.distributed.distributed_c10d"
_DDP: Final = "torch.nn.parallel.distributed"
_LOADER: Final = "torch.utils.data.dataloader"
_FETCH: Final = "torch.utils.data._utils.fetch"
_MODULE: Final = "torch.nn.modules.module"

STORE: Final = Seam("torch.distributed.rendezvous", "_create_c10d_store", Fit.ACCEPTS, ("hostname", "port"))

FAKE: Final[Choice[Callable[[int, int], Any]]] = Choice(
    "pretending to communicate",
    (
        Variant(
            "a fake backend that torch makes",
            (Seam(_NATIVE, "FakeProcessGroup", Fit.HAS, ("_create_internal",)),),
            fake_made_inside,
        ),
        Variant(
            "a fake backend with a constructor",
            (Seam(_NATIVE, "FakeProcessGroup", Fit.HAS, ("__init__",)),),
            fake_constructed,
        ),
    ),
)

ABORT: Final[Choice[Callable[[], None]]] = Choice(
    "aborting all groups",
    (
        Variant(
            "each group aborts itself",
            (
                Seam(_NATIVE, "ProcessGroup", Fit.HAS, ("abort", "shutdown")),
                Seam(_C10D, "_abort_process_group", Fit.ACCEPTS, ("group",)),
            ),
            abort_groups,
        ),
        Variant(
            "NCCL's groups alone, of a world that is named",
            (
                Seam(_C10D, "_abort_backend", Fit.ACCEPTS, ("pg",)),
                Seam(_C10D, "_abort_process_group", Fit.ACCEPTS, ("group",)),
            ),
            abort_nccl_groups,
        ),
    ),
)

STORED: Final[Choice[Callable[[Any, Callable[[], Iterable[str]]], Iterable[str]]]] = Choice(
    "finding keys in the store",
    (
        Variant("a store that lists them", (Seam(_NATIVE, "TCPStore", Fit.HAS, ("list_keys",)),), listed_keys),
        Variant("a store that does not", (Seam(_NATIVE, "TCPStore", Fit.HAS, ("delete_key",)),), known_keys),
    ),
)

TIMEOUT: Final[Choice[Timeouts]] = Choice(
    "setting the timeout of a group that exists",
    (
        Variant(
            "each collective begins with the present one",
            (Seam(_NATIVE, "ProcessGroup", Fit.HAS, ("set_timeout",)),),
            SetTimeouts(),
        ),
        Variant(
            "gloo keeps to the first one",
            (Seam(_NATIVE, "ProcessGroupGloo", Fit.HAS, ("_set_default_timeout",)),),
            KeptTimeouts(),
        ),
    ),
)

_MESH: Final = "torch.distributed.device_mesh"

MESH: Final[Choice[Callable[[Callable[[str], Any]], None]]] = Choice(
    "a mesh's groups",
    (
        Variant("found by name", (Seam(_MESH, "_resolve_process_group", Fit.ACCEPTS, ()),), resolve_by),
        Variant("found by tag and ranks", (Seam(_MESH, "_find_pg_by_ranks_and_tag", Fit.ACCEPTS, ()),), found_by_tag),
    ),
)

SPLIT: Final[Choice[bool]] = Choice(
    "repeating a split of a group",
    (
        Variant(
            "a group splits itself",
            (
                Seam(_C10D, "split_group", Fit.ACCEPTS, ("parent_pg", "split_ranks")),
                Seam(_NATIVE, "ProcessGroup", Fit.HAS, ("split_group", "get_group_store")),
            ),
            True,
        ),
        Variant("none: a group that was split off is refused", (), False),
    ),
)

_FRAMES: Final = "torch._C._dynamo.eval_frame"

SKIP: Final[Choice[Callable[[CodeType], None]]] = Choice(
    "keeping torch.compile from a frame",
    (
        Variant(
            "a strategy for its code",
            (Seam(_FRAMES, "", Fit.HAS, ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")),),
            skip_by_strategy,
        ),
        Variant("none: it may be compiled", (), leave),
    ),
)

_GROUPS: Final = (
    FAKE,
    SKIP,
    MESH,
    SPLIT,
    ABORT,
    STORED,
    TIMEOUT,
    Seam(
        _C10D,
        "_new_process_group_helper",
        Fit.ACCEPTS,
        (
            "group_size",
            "group_rank",
            "global_ranks_in_group",
            "backend",
            "store",
            "group_name",
            "backend_options",
            "timeout",
            "pg_tag",
            "device_id",
            "group_desc",
        ),
    ),
    Seam(_C10D, "_store_based_barrier", Fit.ACCEPTS, ()),
    Seam(_C10D, "rendezvous", Fit.ACCEPTS, ()),
    Seam(_C10D, "_update_default_pg", Fit.ACCEPTS, ("pg",)),
    Seam(_C10D, "_get_default_group", Fit.ACCEPTS, ()),
    Seam(_C10D, "_get_object_coll_device", Fit.ACCEPTS, ("group",)),
    Seam(_C10D, "_set_pg_timeout", Fit.ACCEPTS, ("timeout", "group")),
    Seam(_C10D, "_find_pg_by_ranks_and_tag", Fit.ACCEPTS, ("tag", "ranks")),
    Seam(_C10D, "_rank_not_in_group", Fit.ACCEPTS, ("group",)),
    Seam(_C10D, "broadcast_object_list", Fit.ACCEPTS, ("object_list", "src", "group")),
    Seam(_C10D, "recv_object_list", Fit.ACCEPTS, ("object_list", "src", "group")),
    Seam(
        _C10D,
        "scatter_object_list",
        Fit.ACCEPTS,
        ("scatter_object_output_list", "scatter_object_input_list", "src", "group"),
    ),
    Seam(_C10D, "batch_isend_irecv", Fit.ACCEPTS, ("p2p_op_list",)),
    Seam(_C10D, "P2POp", Fit.SETS, ("group",)),
    Seam(_C10D, "", Fit.HAS, ("_world",)),
    Seam(_C10D, "BackendConfig", Fit.HAS, ("get_device_backend_map",)),
    Seam(
        _C10D,
        "_World",
        Fit.HAS,
        (
            "default_pg",
            "group_count",
            "pg_map",
            "pg_names",
            "pg_group_ranks",
            "pg_backend_config",
            "pg_to_tag",
            "tags_to_pg",
            "pg_coalesce_state",
        ),
    ),
    Seam("torch.distributed.c10d_logger", "_get_msg_dict", Fit.ACCEPTS, ()),
    Seam(_NATIVE, "", Fit.HAS, ("_register_process_group", "_unregister_process_group", "_create_work_from_future")),
    Seam(
        _NATIVE,
        "ProcessGroup",
        Fit.HAS,
        ("_register_backend", "_set_default_backend", "_set_group_name", "_set_group_desc", "_get_backend"),
    ),
    Seam(_NATIVE, "PrefixStore", Fit.HAS, ("underlying_store",)),
)

_TRAINING: Final = (
    Seam(
        _NATIVE,
        "Reducer",
        Fit.HAS,
        ("_rebuild_buckets", "_push_all_rebuilt_params", "_update_process_group", "_get_zeros_like_grad_buckets"),
    ),
    Seam(_DDP, "DistributedDataParallel", Fit.ACCEPTS, ("module", "process_group")),
    Seam(
        _DDP,
        "DistributedDataParallel",
        Fit.SETS,
        ("parameters_to_ignore", "require_backward_grad_sync", "require_forward_param_sync", "_has_rebuilt_buckets"),
    ),
    Seam(_DDP, "DistributedDataParallel._update_process_group", Fit.ACCEPTS, ("new_process_group",)),
    Seam(_DDP, "DistributedDataParallel._pre_forward", Fit.ACCEPTS, ()),
    Seam(_MODULE, "Module", Fit.HAS, ("_call_impl", "_compiled_call_impl")),
    Seam(_MODULE, "Module", Fit.SETS, ("_non_persistent_buffers_set",)),
    Seam("torch.utils._python_dispatch", "TorchDispatchMode", Fit.HAS, ("__torch_dispatch__",)),
    Seam("torch.amp.grad_scaler", "GradScaler", Fit.SETS, ("_scale", "_per_optimizer_states")),
    Seam(_LOADER, "_BaseDataLoaderIter.__init__", Fit.EXACT, ("self", "loader")),
    Seam(_LOADER, "_BaseDataLoaderIter", Fit.SETS, ("_num_yielded",)),
    Seam(_LOADER, "_BaseDataLoaderIter._next_data", Fit.EXACT, ("self",)),
    Seam(_LOADER, "DataLoader._get_iterator", Fit.EXACT, ("self",)),
    Seam(_LOADER, "DataLoader", Fit.HAS, ("_index_sampler",)),
    Seam(_LOADER, "DataLoader", Fit.SETS, ("_iterator",)),
    Seam(_FETCH, "_MapDatasetFetcher.fetch", Fit.EXACT, ("self", "possibly_batched_index")),
    Seam(_FETCH, "_IterableDatasetFetcher.fetch", Fit.EXACT, ("self", "possibly_batched_index")),
)

WORKER: Final = (STORE, *_GROUPS, *_TRAINING)
"""Compared in each rank, before anything is replaced."""

_BATON: Final = "torch.utils.file_baton"

BUILDS: Final = (
    Seam(_BATON, "FileBaton", Fit.SETS, ("lock_file_path", "wait_seconds", "fd")),
    Seam(_BATON, "FileBaton.try_acquire", Fit.EXACT, ("self",)),
    Seam(_BATON, "FileBaton.wait", Fit.EXACT, ("self",)),
    Seam(_BATON, "FileBaton.release", Fit.EXACT, ("self",)),
)
"""Compared when a script imports torch.utils.file_baton, as a script that builds extensions does."""

_SAVED: Final = "torch.distributed.checkpoint"
_SAVED_FILES: Final = f"{_SAVED}.filesystem"
_SAVED_INDEX: Final = f"{_SAVED}.metadata"

CHECKPOINT: Final = (
    Seam(f"{_SAVED}.state_dict", "_get_fqns", Fit.ACCEPTS, ("model", "name")),
    Seam(_SAVED_FILES, "FileSystem.create_stream", Fit.EXACT, ("self", "path", "mode")),
    Seam(_SAVED_FILES, "FileSystem.rename", Fit.EXACT, ("self", "path", "new_path")),
    Seam(_SAVED_FILES, "FileSystemReader", Fit.SETS, ("fs",)),
    Seam(_SAVED_FILES, "FileSystemReader.read_metadata", Fit.ACCEPTS, ("self",)),
    Seam(_SAVED_FILES, "_FileSystemWriter", Fit.SETS, ("fs",)),
    Seam(_SAVED_FILES, "_StorageInfo", Fit.ACCEPTS, ("relative_path", "offset", "length")),
    Seam(_SAVED_INDEX, "Metadata", Fit.ACCEPTS, ("state_dict_metadata", "storage_data", "storage_meta")),
    Seam(_SAVED_INDEX, "MetadataIndex", Fit.ACCEPTS, ("fqn", "offset")),
    Seam(_SAVED_INDEX, "TensorStorageMetadata", Fit.ACCEPTS, ("properties", "size", "chunks")),
    Seam(_SAVED_INDEX, "ChunkStorageMetadata", Fit.ACCEPTS, ("offsets", "sizes")),
    Seam(_SAVED_INDEX, "TensorProperties", Fit.ACCEPTS, ("dtype",)),
)
"""Compared when a checkpoint is written: the import alone takes seconds."""
