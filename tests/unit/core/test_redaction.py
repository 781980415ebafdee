"""What others wrote goes to logs, XComs and lineage: no credential in it, and as much of the rest as possible."""

from __future__ import annotations

import pytest

from airflow_provider.core.errors import ClusterRefused, RayTrainError
from airflow_provider.core.redaction import MASK, redact, redact_answer
from airflow_provider.triggers.waiter import error_event

SECRET = "s3cr3tV4lue9876"
TEXTS = {
    "basic": f"Authorization: Basic {SECRET}==",
    "basic in a dict": f"{{'Authorization': 'Basic {SECRET}=='}}",
    "bearer": f"Authorization: Bearer {SECRET}",
    "bearer alone": f"refused bearer {SECRET}",
    "token": f"Authorization: token {SECRET}",
    "bare": f"authorization={SECRET}",
    "api key": f"x-api-key: {SECRET}",
    "api key in capitals": f"X-API-KEY={SECRET}",
    "signed query": f"GET https://b.s3.amazonaws.com/k?X-Amz-Signature={SECRET}&X-Amz-Date=1 failed",
    "signed query of another kind": f"see https://acct.blob.core.windows.net/c/k?sv=2024&sig={SECRET}",
    "signature": f"X-Amz-Signature={SECRET}",
    "session token": f"x-amz-security-token: {SECRET}",
    "user information": f"http://user:{SECRET}@host:9000/path",
    "user alone": f"http://{SECRET}@host/path",
    "password": f"password={SECRET}",
    "secret key": f'"aws_secret_access_key": "{SECRET}"',
    "token of a store": f"hf_token={SECRET}",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_credential_is_masked_wherever_it_stands(text: str) -> None:
    for told in (redact(text), redact(f"before {text} after"), redact(redact(text)), redact_answer(text)):
        assert SECRET not in told
        assert MASK in told
    assert redact(f"before {text}").startswith("before ")


@pytest.mark.parametrize("key", ["AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE"])
def test_the_id_of_an_aws_key_is_masked(key: str) -> None:
    assert redact(f"The key {key} is not authorised") == f"The key {MASK} is not authorised"


@pytest.mark.parametrize(
    "text",
    [
        "node 3 died at step 1200 after 17 of 20 epochs",
        "s3://models/churn/g000001/attempts/000001/checkpoint_000003",
        "http://ray.example:8265/ray/team-a/api/jobs/af-d-1",
        "No module named 'token_utils'",
        "user@example.com asked",
        "the basic case, the bearer of news",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert redact(text) == text


def test_where_the_host_stands_is_still_told() -> None:
    assert redact(f"http://u:{SECRET}@host:9000/x") == f"http://{MASK}@host:9000/x"
    assert redact(f"https://h/k?sig={SECRET}&a=1 is gone") == f"https://h/k?{MASK} is gone"


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_an_errors_failure_and_event_are_redacted(text: str) -> None:
    """Both go to XCom and into records, beyond Airflow's own masking."""
    error = ClusterRefused("The dashboard answered 400", known=text)
    event = error_event(error)
    for told in (error.failure.reason, event["reason"], error_event(ValueError(text))["reason"]):
        assert SECRET not in told
        assert MASK in told
    assert error.failure.reason.startswith("The dashboard answered 400. Known: ")
    assert (event["end"], event["kind"]) == ("error", "config")


def test_an_event_stays_short_without_cutting_a_secret_in_half() -> None:
    """Cut first, the rest of a secret would no longer look like one."""
    event = error_event(RayTrainError("x" * 1970 + f" password={SECRET}" + "y" * 5000))
    assert len(event["reason"]) <= 2000
    assert SECRET[:4] not in event["reason"]
