"""Every protected Lightning name the federated loop stands on: a new release fails here and says where."""

import ast
import importlib
import inspect
from pathlib import Path

import lightning
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from toy_federation import TinyNet, ToyData, make_trainer

import fedsynth.federated

LOOPS = "lightning.pytorch.loops"
CONNECTOR = "lightning.pytorch.trainer.connectors.logger_connector"
SIGNATURES = {
    f"{LOOPS}.fit_loop:_FitLoop.__init__": ["self", "trainer", "min_epochs", "max_epochs"],
    f"{LOOPS}.fit_loop:_FitLoop.run": ["self"],
    f"{LOOPS}.fit_loop:_FitLoop.setup_data": ["self"],
    f"{LOOPS}.fit_loop:_FitLoop.reset": ["self"],
    f"{LOOPS}.fit_loop:_FitLoop.on_run_start": ["self"],
    f"{LOOPS}.fit_loop:_FitLoop.on_advance_start": ["self"],
    f"{LOOPS}.fit_loop:_FitLoop.advance": ["self"],
    f"{LOOPS}.fit_loop:_FitLoop.on_advance_end": ["self"],
    f"{LOOPS}.fit_loop:_FitLoop.teardown": ["self"],
    f"{LOOPS}.fit_loop:_FitLoop.on_save_checkpoint": ["self"],
    f"{LOOPS}.fit_loop:_FitLoop.on_load_checkpoint": ["self", "state_dict"],
    f"{LOOPS}.fit_loop:_FitLoop._iteration_based_training": ["self"],
    f"{LOOPS}.loop:_Loop.state_dict": ["self", "destination", "prefix"],
    f"{LOOPS}.loop:_Loop.load_state_dict": ["self", "state_dict", "prefix"],
    f"{LOOPS}.loop:_Loop._load_from_state_dict": ["self", "state_dict", "prefix"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop.__init__": ["self", "trainer", "min_steps", "max_steps"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop.run": ["self", "data_fetcher"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop.reset": ["self"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop.on_run_start": ["self", "data_fetcher"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop.advance": ["self", "data_fetcher"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop.on_advance_end": ["self", "data_fetcher"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop.on_save_checkpoint": ["self"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop.update_lr_schedulers": [
        "self",
        "interval",
        "update_plateau_schedulers",
    ],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop._num_ready_batches_reached": ["self"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop._should_accumulate": ["self"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop._should_check_val_epoch": ["self"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop._should_check_val_fx": ["self", "data_fetcher"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop._broadcast_sigterm_tensor": ["self"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop._save_loggers_on_train_batch_end": ["self"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop._on_before_fetch": ["self"],
    f"{LOOPS}.training_epoch_loop:_TrainingEpochLoop._on_after_fetch": ["self"],
    f"{LOOPS}.optimization.automatic:_AutomaticOptimization.__init__": ["self", "trainer"],
    f"{LOOPS}.optimization.automatic:_AutomaticOptimization._training_step": ["self", "kwargs"],
    f"{LOOPS}.fetchers:_DataFetcher.setup": ["self", "combined_loader"],
    f"{LOOPS}.utilities:_select_data_fetcher": ["trainer", "stage"],
    f"{LOOPS}.progress:_Progress.load_state_dict": ["self", "state_dict"],
    "lightning.fabric.utilities.data:_set_sampler_epoch": ["dataloader", "epoch"],
    "lightning.pytorch.trainer.call:_call_lightning_module_hook": [
        "trainer",
        "hook_name",
        "args",
        "pl_module",
        "kwargs",
    ],
    f"{CONNECTOR}.result:_ResultCollection.__init__": [
        "self",
        "training",
    ],
    f"{CONNECTOR}.result:_ResultCollection.metrics": [
        "self",
        "on_step",
    ],
    f"{CONNECTOR}.logger_connector:_LoggerConnector.log_metrics": [
        "self",
        "metrics",
        "step",
    ],
    f"{CONNECTOR}.logger_connector:_LoggerConnector.epoch_end_reached": ["self"],
    "lightning.pytorch.strategies:DDPStrategy.configure_ddp": ["self"],
    "lightning.pytorch.strategies:DDPStrategy.setup": ["self", "trainer"],
    "lightning.pytorch.strategies:DDPStrategy.reduce": ["self", "tensor", "group", "reduce_op"],
    "lightning.pytorch.strategies:DDPStrategy.reduce_boolean_decision": ["self", "decision", "all"],
    "lightning.pytorch:Trainer.save_checkpoint": ["self", "filepath", "weights_only", "storage_options"],
}
ATTRIBUTES = [
    "fit_loop._combined_loader",
    "fit_loop.epoch_progress.current.ready",
    "fit_loop.epoch_progress.current.started",
    "fit_loop.epoch_progress.current.processed",
    "fit_loop.epoch_progress.current.completed",
    "fit_loop.max_batches",
    "fit_loop.min_steps",
    "fit_loop.epoch_loop._batches_that_stepped",
    "fit_loop.epoch_loop._results",
    "fit_loop.epoch_loop.batch_progress.current.ready",
    "fit_loop.epoch_loop.batch_progress.is_last_batch",
    "fit_loop.epoch_loop.val_loop.run",
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed",
    "fit_loop.epoch_loop.manual_optimization.optim_step_progress.total.completed",
    "_logger_connector._callback_metrics",
    "lightning_module._current_fx_name",
    "received_sigterm",
    "lr_scheduler_configs",
    "fit_loop._combined_loader.limits",
    "fit_loop._combined_loader.flattened",
    "fit_loop._combined_loader.iterables",
    "fit_loop._combined_loader._mode",
]


def broken(name: str, what: str) -> str:
    return (
        f"Lightning {lightning.__version__} changed {name}: {what}. Pin the last release that passes this "
        "file in pyproject.toml, or adapt src/fedsynth/federated/loop.py and this table."
    )


def resolve(path: str) -> object:
    module, _, names = path.partition(":")
    value: object = importlib.import_module(module)
    for name in names.split("."):
        assert hasattr(value, name), broken(path, "it is gone")
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("path", SIGNATURES)
def test_protected_functions_keep_their_signature(path) -> None:
    found = list(inspect.signature(resolve(path)).parameters)  # type: ignore[arg-type]
    assert found == SIGNATURES[path], broken(path, f"it takes {found}, expected {SIGNATURES[path]}")


@pytest.fixture(scope="module")
def running(tmp_path_factory):  # type: ignore[no-untyped-def]
    trainer = make_trainer(tmp_path_factory.mktemp("contract"), fast_dev_run=True)
    trainer.fit(TinyNet(), datamodule=ToyData())
    return trainer


@pytest.mark.parametrize("path", ATTRIBUTES)
def test_protected_attributes_exist_on_a_trainer(running, path) -> None:
    value = running
    for name in path.split("."):
        assert hasattr(value, name), broken(f"Trainer.{path}", f"there is no {name}")
        value = getattr(value, name)


def test_fit_loop_is_a_plain_attribute_of_the_trainer(running) -> None:
    assert "fit_loop" in vars(running), broken("Trainer.fit_loop", "assigning it may have no effect")


@pytest.mark.parametrize("name", ["_every_n_train_steps", "_train_time_interval", "save_on_exception"])
def test_model_checkpoint_says_when_it_saves(name) -> None:
    assert hasattr(ModelCheckpoint(), name), broken(f"ModelCheckpoint.{name}", "guards.py reads it")


def test_only_the_loops_import_protected_names_of_lightning() -> None:
    package = Path(fedsynth.federated.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning"):
                protected = [alias.name for alias in node.names if alias.name.startswith("_")]
                assert not protected or path.name in ("loop.py", "client_epoch.py"), (path, protected)


@pytest.mark.parametrize(
    "name", ["state", "client", "schedules", "strategies.base", "strategies.fedavg", "strategies.fedbn"]
)
def test_states_clients_and_strategies_know_nothing_of_lightning(name) -> None:
    path = Path(fedsynth.federated.__file__).parent / (name.replace(".", "/") + ".py")
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported
    assert not [
        module for module in imported if (module or "").startswith(("lightning", "pytorch_lightning"))
    ]
