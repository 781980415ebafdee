"""The configuration models: wrong parameters fail at DAG parse with the field's name, templates pass until rendered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from airflow_provider.core.errors import InvalidConfig
from airflow_provider.core.spec import (
    CheckpointConfig,
    Config,
    FailureConfig,
    ScalingConfig,
    StorageConfig,
    has_template,
)

MODELS: list[type[Config]] = [ScalingConfig, FailureConfig, CheckpointConfig, StorageConfig]
FIELDS = [(model, name) for model in MODELS for name in model.model_fields]
T = "{{ params.value }}"


@pytest.mark.parametrize(("model", "field"), FIELDS, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_every_field_takes_a_template_at_parse(model: type[Config], field: str) -> None:
    """Also a field with a bound, and a whole dict: `"{{ ... }}" >= 1` once was a TypeError."""
    assert model.parsed({field: T}, parameter="p")[field] == T


@pytest.mark.parametrize("text", ["{{ x }}", "{% if x %}1{% endif %}", "{# why #}3"])
def test_all_of_jinjas_brackets_count(text: str) -> None:
    assert has_template(text)
    assert FailureConfig.parsed({"max_failures": text}, parameter="p")["max_failures"] == text


def test_a_brace_alone_is_no_template() -> None:
    assert not has_template("{x}")
    assert not has_template(3)


def test_templates_at_any_depth_pass_at_parse() -> None:
    data = {"num_workers": [T, 4], "resources_per_worker": {"GPU": T, "CPU": 2}}
    parsed = ScalingConfig.parsed(data, parameter="scaling_config")
    assert parsed["num_workers"] == (T, 4)
    assert parsed["resources_per_worker"] == {"GPU": T, "CPU": 2.0}


@pytest.mark.parametrize(
    ("model", "data", "path"),
    [
        (ScalingConfig, {"num_workers": T}, "p.num_workers"),
        (ScalingConfig, {"num_workers": [1, T]}, "p.num_workers"),
        (ScalingConfig, {"resources_per_worker": T}, "p.resources_per_worker"),
        (ScalingConfig, {"resources_per_worker": {"GPU": T}}, "p.resources_per_worker.GPU"),
        (FailureConfig, {"max_failures": T}, "p.max_failures"),
        (CheckpointConfig, {"num_to_keep": T}, "p.num_to_keep"),
    ],
)
def test_a_template_left_after_rendering_is_an_error_with_the_fields_name(
    model: type[Config], data: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        model.rendered(data, parameter="p")
    assert path in str(caught.value)
    assert "{{" not in str(caught.value)


def test_rendered_strings_become_numbers() -> None:
    """Jinja renders to text; XComs give lists."""
    config = ScalingConfig.rendered({"num_workers": ["1", "4"], "use_gpu": "True"}, parameter="p")
    assert (config.num_workers, config.use_gpu) == ((1, 4), True)
    assert config.wanted_workers == "1-4"
    assert ScalingConfig.rendered({"num_workers": "3"}, parameter="p").wanted_workers == "3"
    assert CheckpointConfig.rendered({"num_to_keep": "2"}, parameter="p").num_to_keep == 2
    assert CheckpointConfig.rendered({"num_to_keep": None}, parameter="p").num_to_keep is None


@pytest.mark.parametrize("value", [None, {}, ScalingConfig()])
def test_nothing_a_dict_and_a_model_are_the_same(value: Any) -> None:
    assert ScalingConfig.rendered(value, parameter="p") == ScalingConfig()
    assert ScalingConfig.parsed(value, parameter="p") == ScalingConfig().model_dump()


def test_parsing_twice_changes_nothing() -> None:
    """A serialized DAG is parsed from what the first parse gave."""
    once = ScalingConfig.parsed({"num_workers": (1, T)}, parameter="p")
    assert ScalingConfig.parsed(json.loads(json.dumps(once)), parameter="p") == once


WRONG: list[tuple[type[Config], dict[str, Any], str]] = [
    (ScalingConfig, {"num_workers": 0}, "at least 1"),
    (ScalingConfig, {"num_workers": (0, 2)}, "at least 1"),
    (ScalingConfig, {"num_workers": (4, 1)}, "4 > 1"),
    (ScalingConfig, {"resources_per_worker": {"GPU": -1}}, "resources_per_worker must not be negative"),
    (ScalingConfig, {"workers": 2}, "p.workers"),
    (FailureConfig, {"max_failures": -2}, "p.max_failures"),
    (FailureConfig, {"controller_failure_limit": -2}, "p.controller_failure_limit"),
    (FailureConfig, {"max_preemption_failures": -2}, "p.max_preemption_failures"),
    (FailureConfig, {"no_progress_failures": 0}, "p.no_progress_failures"),
    (FailureConfig, {"max_refits": -1}, "p.max_refits"),
    (CheckpointConfig, {"num_to_keep": 0}, "p.num_to_keep"),
    (CheckpointConfig, {"checkpoint_score_order": "up"}, "checkpoint_score_order"),
    (StorageConfig, {"endpoint_url": "minio:9000"}, "endpoint_url"),
    (StorageConfig, {"endpoint_url": "http://h/path"}, "endpoint_url"),
    (StorageConfig, {"endpoint_url": "http://h\n"}, "endpoint_url"),
    (StorageConfig, {"endpoint_url": "http://h?x=1"}, "endpoint_url"),
]


@pytest.mark.parametrize(("model", "data", "words"), WRONG, ids=range(len(WRONG)))
def test_wrong_values_are_refused_at_parse_and_after(model: type[Config], data: dict[str, Any], words: str) -> None:
    for check in (model.parsed, model.rendered):
        with pytest.raises(InvalidConfig) as caught:
            check(data, parameter="p")
        assert words in str(caught.value)
        assert next(iter(model.model_fields)) in caught.value.change


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (FailureConfig, {"max_failures": -1, "controller_failure_limit": -1, "max_preemption_failures": -1}),
        (FailureConfig, {"max_failures": 0, "max_refits": 0, "no_progress_failures": 1}),
        (ScalingConfig, {"num_workers": (2, 2), "resources_per_worker": {"CPU": 0}}),
        (CheckpointConfig, {"num_to_keep": 1, "checkpoint_score_order": "min"}),
        (StorageConfig, {"endpoint_url": "https://s3.example:8333/"}),
    ],
    ids=range(5),
)
def test_the_edges_are_allowed(model: type[Config], data: dict[str, Any]) -> None:
    for name, value in data.items():
        assert getattr(model.rendered(data, parameter="p"), name) == value


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (ScalingConfig, {"num_workers": "hunter2", "use_gpu": "hunter2", "accelerator_type": ["hunter2"]}),
        (ScalingConfig, {"resources_per_worker": {"GPU": "hunter2"}, "password": "hunter2"}),
        (StorageConfig, {"endpoint_url": "http://user:hunter2@host"}),
        (StorageConfig, {"secret_key": "hunter2", "region": {"x": "hunter2"}}),
        (CheckpointConfig, {"checkpoint_score_order": "hunter2"}),
        (FailureConfig, "hunter2"),
    ],
    ids=range(6),
)
def test_messages_never_echo_a_value(model: type[Config], data: Any) -> None:
    """A mistyped field may hold a password, and DAG import errors are shown to everybody."""
    for check in (model.parsed, model.rendered):
        with pytest.raises(InvalidConfig) as caught:
            check(data, parameter="p")
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert "hunter2" not in repr(caught.value.facts)


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(InvalidConfig) as caught:
        ScalingConfig.parsed({"num_workers": "x", "nope": 1, "use_gpu": "x"}, parameter="scaling_config")
    for path in ("scaling_config.num_workers", "scaling_config.nope", "scaling_config.use_gpu"):
        assert str(caught.value).count(path) == 1


def test_a_value_of_another_kind_says_what_it_takes() -> None:
    with pytest.raises(InvalidConfig, match=r"p is a int.*ScalingConfig\(\.\.\.\) or a dict"):
        ScalingConfig.parsed(3, parameter="p")  # type: ignore[arg-type]


def test_models_are_frozen() -> None:
    with pytest.raises(ValidationError):
        ScalingConfig().num_workers = 3  # type: ignore[misc]


def test_our_defaults_survive_a_lost_node() -> None:
    """Ray's default of 0 ends a run of days at the first lost node."""
    assert FailureConfig().max_failures == 20


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: ScalingConfig(num_workers=0), "num_workers must be at least 1"),
        (lambda: ScalingConfig(num_workers=(4, 2)), "4 > 2"),
        (lambda: CheckpointConfig(checkpoint_score_order="up"), "'max' or 'min'"),
        (lambda: StorageConfig(endpoint_url="s3.local"), "endpoint_url is http"),
    ],
)
def test_fields_that_contradict_each_other_are_said_our_way(build: Callable[[], object], says: str) -> None:
    """Written in a DAG file: the author must not meet pydantic's own error."""
    with pytest.raises(InvalidConfig, match=re.escape(says)) as caught:
        build()
    assert "known fields are" in caught.value.change
