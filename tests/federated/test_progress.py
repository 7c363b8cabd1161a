"""One line per round where no terminal is, a bar where one is, silence where it is disabled."""

import io

import pytest
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from toy_federation import TinyNet, ToyData, fitted, make_trainer

from fedsynth.federated.progress import FederatedProgressBar


def shown(tmp_path, terminal: bool, **changes: object) -> str:  # type: ignore[no-untyped-def]
    output = io.StringIO()
    bar = FederatedProgressBar(Console(file=output, force_terminal=terminal, width=160), **changes)
    fitted(tmp_path, callbacks=[bar], enable_progress_bar=True, max_epochs=2)
    return output.getvalue()


def test_without_a_terminal_each_round_is_one_line(tmp_path) -> None:
    lines = shown(tmp_path, terminal=False).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["round 1/2", "round 2/2"]
    assert all("5 clients" in line and "val/loss" in line for line in lines)
    assert not any("client/" in line for line in lines)


def test_on_a_terminal_rounds_and_clients_are_counted(tmp_path) -> None:
    output = shown(tmp_path, terminal=True)
    assert "rounds" in output
    assert "2/2" in output
    assert "5/5" in output


def test_only_the_named_metrics_are_shown(tmp_path) -> None:
    output = shown(tmp_path, terminal=False, metric_names=("val/loss", "absent"))
    assert "val/loss" in output
    assert "train/loss" not in output
    assert "absent" not in output


def test_a_disabled_bar_is_silent(tmp_path) -> None:
    output = io.StringIO()
    bar = FederatedProgressBar(Console(file=output))
    trainer = make_trainer(tmp_path, callbacks=[bar], enable_progress_bar=True, max_epochs=1)
    bar.disable()
    trainer.fit(TinyNet(), datamodule=ToyData())
    assert output.getvalue() == ""
    bar.enable()
    bar.print("said")
    assert output.getvalue() == "said\n"


@pytest.mark.parametrize(("enabled", "number"), [(None, 1), (True, 1), (False, 0)])
def test_the_trainer_brings_its_bar_unless_told_not_to(tmp_path, enabled, number) -> None:
    trainer = make_trainer(tmp_path, enable_progress_bar=enabled)
    assert len([c for c in trainer.callbacks if isinstance(c, FederatedProgressBar)]) == number
    assert len([c for c in trainer.callbacks if isinstance(c, ProgressBar)]) == number


def test_the_users_own_bar_is_kept(tmp_path) -> None:
    class Own(ProgressBar):
        def enable(self) -> None: ...
        def disable(self) -> None: ...

    own = Own()
    trainer = make_trainer(tmp_path, callbacks=own, enable_progress_bar=True)
    assert trainer.progress_bar_callback is own
