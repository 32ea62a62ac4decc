"""The names that taskd overrides, calls and reads in Lightning."""

from taskd.adaptors.seams.seam import Fit, Seam
from taskd.adaptors.trainers.lightning.library import Library


def table(library: Library) -> tuple[Seam, ...]:
    """Return the table for one of the two packages."""
    root, fabric = library.root, library.fabric_root
    strategy, fit = f"{root}.strategies.strategy", f"{root}.loops.fit_loop"
    epochs, automatic = f"{root}.loops.training_epoch_loop", f"{root}.loops.optimization.automatic"
    result, connectors = f"{root}.trainer.connectors.logger_connector.result", f"{root}.trainer.connectors"
    connector = f"{connectors}.logger_connector.logger_connector"
    exact, accepts, has, sets = Fit.EXACT, Fit.ACCEPTS, Fit.HAS, Fit.SETS
    return (
        # Overridden in the strategies.
        Seam(strategy, "Strategy.setup", exact, ("self", "trainer")),
        Seam(f"{root}.strategies", "DDPStrategy.set_world_ranks", exact, ("self",)),
        Seam(f"{root}.strategies", "ModelParallelStrategy.set_world_ranks", exact, ("self",)),
        Seam(strategy, "Strategy.process_dataloader", exact, ("self", "dataloader")),
        Seam(strategy, "Strategy.pre_backward", exact, ("self", "closure_loss")),
        Seam(strategy, "Strategy.save_checkpoint", exact, ("self", "checkpoint", "filepath", "storage_options")),
        Seam(strategy, "Strategy.teardown", exact, ("self",)),
        Seam(f"{root}.trainer.trainer", "Trainer._run_stage", exact, ("self",)),
        # Replaced in the loops, or called in their order.
        Seam(fit, "_FitLoop.run", exact, ("self",)),
        Seam(fit, "_FitLoop.setup_data", exact, ("self",)),
        Seam(fit, "_FitLoop", sets, ("epoch_loop", "epoch_progress", "_combined_loader", "_data_fetcher")),
        Seam(
            fit, "_FitLoop", has,
            ("done", "skip", "reset", "on_run_start", "on_advance_start", "advance", "on_advance_end",
             "on_iteration_done", "on_run_end", "_should_accumulate"),
        ),
        Seam(epochs, "_TrainingEpochLoop.run", exact, ("self", "data_fetcher")),
        Seam(epochs, "_TrainingEpochLoop.advance", exact, ("self", "data_fetcher")),
        Seam(epochs, "_TrainingEpochLoop.on_advance_end", exact, ("self", "data_fetcher")),
        Seam(epochs, "_TrainingEpochLoop.update_lr_schedulers", accepts, ("interval", "update_plateau_schedulers")),
        Seam(
            epochs, "_TrainingEpochLoop", sets,
            ("batch_progress", "automatic_optimization", "manual_optimization", "val_loop", "_results"),
        ),
        Seam(
            epochs, "_TrainingEpochLoop", has,
            ("done", "batch_idx", "_num_ready_batches_reached", "_on_before_fetch", "_on_after_fetch"),
        ),
        Seam(
            automatic, "_AutomaticOptimization.run", exact,
            ("self", "optimizer", "batch_idx", "kwargs"),
        ),
        Seam(automatic, "_AutomaticOptimization", sets, ("optim_progress",)),
        Seam(
            automatic, "ClosureResult.from_training_step_output", accepts,
            ("training_step_output", "normalize"),
        ),
        Seam(f"{root}.loops.optimization.manual", "_ManualOptimization.run", exact, ("self", "kwargs")),
        Seam(f"{root}.loops.optimization.manual", "_ManualOptimization", sets, ("optim_step_progress",)),
        Seam(
            f"{root}.loops.optimization.manual", "ManualResult.from_training_step_output", accepts,
            ("training_step_output",),
        ),
        Seam(f"{root}.trainer.call", "_call_callback_hooks", accepts, ("trainer", "hook_name", "args")),
        Seam(f"{root}.trainer.call", "_call_lightning_module_hook", accepts, ("trainer", "hook_name", "args")),
        Seam(f"{root}.trainer.call", "_call_strategy_hook", accepts, ("trainer", "hook_name", "args")),
        # Kept and put back.
        Seam(
            f"{root}.loops.evaluation_loop", "_EvaluationLoop", sets, ("_combined_loader", "_module_mode", "_results"),
        ),
        Seam(f"{root}.loops.loop", "_Loop", sets, ("_restarting", "trainer")),
        Seam(f"{root}.loops.progress", "_BaseProgress", has, ("state_dict",)),
        Seam(f"{root}.loops.fetchers", "_DataFetcher", sets, ("iterator", "fetched", "done")),
        Seam(f"{root}.loops.fetchers", "_DataFetcher.setup", accepts, ("combined_loader",)),
        Seam(connector, "_LoggerConnector", sets,
             ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics", "_current_fx", "_first_loop_iter")),
        Seam(connector, "_LoggerConnector", has, ("on_batch_end", "update_train_step_metrics")),
        Seam(result, "_ResultCollection", sets, ("batch", "batch_size", "dataloader_idx")),
        Seam(result, "_ResultMetric", sets, ("is_tensor", "meta", "has_reset", "_forward_cache")),
        Seam(
            result, "_Metadata", accepts,
            ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph",
             "add_dataloader_idx", "dataloader_idx", "metric_attribute"),
        ),
        Seam(result, "_Sync", accepts, ("fn", "_should", "rank_zero_only", "_op")),
        Seam(f"{root}.callbacks", "ModelCheckpoint.file_exists", exact, ("self", "filepath", "trainer")),
        Seam(f"{root}.callbacks", "ModelCheckpoint._link_checkpoint", exact, ("trainer", "filepath", "linkpath")),
        Seam(f"{root}.callbacks", "ProgressBar", has, ("on_train_epoch_start",)),
        Seam(f"{fabric}.utilities.data", "_set_sampler_epoch", accepts, ("dataloader", "epoch")),
        Seam(f"{root}.utilities.rank_zero", "rank_zero_only", Fit.EXPORTS),
        Seam(f"{fabric}.utilities.rank_zero", "rank_zero_only", Fit.EXPORTS),
    )  # fmt: skip
