"""What doctor's job sees from inside the cluster: one line of JSON, whatever is wrong, and the bucket as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_provider.cli.doctor_job import read_report
from airflow_provider.core.self_check import REQUEST_FILE, SelfCheckRequest
from airflow_provider.runtime import self_check


def ask(folder: Path, monkeypatch: pytest.MonkeyPatch, request: SelfCheckRequest) -> None:
    """Put the request where the package of the job would have it."""
    (folder / REQUEST_FILE).write_text(request.model_dump_json())
    monkeypatch.setattr("airflow_provider.__file__", str(folder / "__init__.py"))


def test_the_report_is_one_line_that_doctor_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models"
    ask(tmp_path, monkeypatch, SelfCheckRequest(storage_path=str(models)))
    monkeypatch.setattr(self_check, "_seams", lambda: ())
    assert self_check.main() == 0
    report = read_report(f"noise\n{capsys.readouterr().out}more noise\n")
    assert report is not None
    assert report.versions["ray"]
    assert [(step.action.split()[0], step.error) for step in report.bucket] == [
        ("list", None),
        ("write", None),
        ("read", None),
        ("delete", None),
    ]
    assert [path for path in models.rglob("*") if path.is_file()] == []


def test_a_bucket_that_refuses_is_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    steps = self_check.check_bucket(SelfCheckRequest(storage_path=str(tmp_path / "file" / "below")))
    assert len(steps) == 1, "without a listing nothing else is tried"
    assert steps[0].error


def test_a_cluster_without_pyarrow_is_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its image has Ray without Ray Train's packages: the versions say so, and must not be lost for it."""
    ask(tmp_path, monkeypatch, SelfCheckRequest(storage_path=str(tmp_path / "models")))
    monkeypatch.setattr(self_check, "_seams", lambda: ())
    monkeypatch.setitem(sys.modules, "airflow_provider.runtime.storage", None)
    assert self_check.main() == 0
    report = read_report(capsys.readouterr().out)
    assert report is not None
    (step,) = report.bucket
    assert (step.action, "Error" in (step.error or "")) == ("list (s3:ListBucket)", True)


def test_read_only_writes_nothing(tmp_path: Path) -> None:
    request = SelfCheckRequest(storage_path=str(tmp_path / "models"), is_read_only=True)
    assert [step.action for step in self_check.check_bucket(request)] == ["list (s3:ListBucket)"]
    assert list(tmp_path.iterdir()) == []


def test_seams_that_cannot_be_looked_at_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[str]:
        raise RuntimeError("no ray here")

    monkeypatch.setattr("airflow_provider.runtime.seams.missing_seams", broken)
    assert self_check._seams() == ("the check itself failed: RuntimeError: no ray here",)


@pytest.mark.parametrize("log", ["", "nothing here", "RAY_TRAIN_SELF_CHECK {torn", "RAY_TRAIN_SELF_CHECK []"])
def test_a_log_without_a_report_is_none(log: str) -> None:
    assert read_report(log) is None
