from __future__ import annotations

import math
import subprocess
import sys

import pytest

from fedsynth.errors import ConfigError
from fedsynth.privacy import parameters
from fedsynth.privacy.parameters import PrivacyParameterError


@pytest.mark.parametrize(
    ("check", "accepted"),
    [
        (parameters.check_epsilon, [0, 1e-3, 4, math.inf]),
        (parameters.check_delta, [1e-15, 1e-5, 0.5, 1 - 1e-9]),
        (lambda value: parameters.check_positive(value, "clip_radius"), [1e-9, 11, 1e9]),
        (parameters.check_noise_std, [0, 1.5, math.inf]),
        (parameters.check_percentile, [0.1, 95, 100]),
        (lambda value: parameters.check_count(value, "shards"), [1, 4]),
    ],
)
def test_values_in_range_are_returned_unchanged(check, accepted):
    assert [check(value) for value in accepted] == accepted


@pytest.mark.parametrize(
    ("check", "refused"),
    [
        (parameters.check_epsilon, [-1e-9, -math.inf, math.nan, "4", None, True]),
        (parameters.check_delta, [0, 1, -1e-5, 1.5, math.nan, math.inf, "1e-5"]),
        (lambda value: parameters.check_positive(value, "clip_radius"), [0, -1, math.inf, math.nan]),
        (parameters.check_noise_std, [-1, math.nan, [1.0]]),
        (parameters.check_percentile, [0, 100.1, math.nan]),
        (lambda value: parameters.check_count(value, "shards"), [0, -1, 4.0, True, "4"]),
    ],
)
def test_values_out_of_range_are_refused_as_config_and_value_error(check, refused):
    for value in refused:
        with pytest.raises(PrivacyParameterError) as caught:
            check(value)
        assert isinstance(caught.value, ConfigError)
        assert isinstance(caught.value, ValueError)
        assert repr(value) in str(caught.value)


def test_message_names_the_parameter_the_value_and_the_range():
    with pytest.raises(PrivacyParameterError, match=r"stages\.release\.delta must be in \(0, 1\), got 1\.5"):
        parameters.check_delta(1.5, "stages.release.delta")


def test_text_that_looks_like_a_number_is_explained():
    with pytest.raises(PrivacyParameterError, match=r"write 1\.0e-5"):
        parameters.check_delta("1e-5")


def test_importing_the_package_loads_neither_torch_nor_scipy():
    code = "import sys, fedsynth.privacy as p; print(sorted({'torch', 'scipy', 'numpy'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_calibration_does_not_load_torch():
    code = "import sys, fedsynth.privacy as p; p.gaussian_delta(1, 1, 1); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
