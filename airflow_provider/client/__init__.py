"""REST client of Ray's Jobs API: no ray and no airflow needed. Everything public is importable from here."""

from __future__ import annotations

from airflow_provider.client.address import ClusterAddress
from airflow_provider.client.credentials import ClusterCredentials, InsecureDashboardWarning
from airflow_provider.client.endpoint import Timeouts
from airflow_provider.client.jobs_client import AsyncJobsClient, SyncJobsClient
from airflow_provider.client.log_reader import LogReader
from airflow_provider.client.log_tail import TailLimits, last_chunk
from airflow_provider.client.packages import MAX_PACKAGE_BYTES, package_directory, package_files
from airflow_provider.client.protocol import AsyncJobs, JobsClient
from airflow_provider.client.submitting import SubmitLimits
from airflow_provider.client.values import (
    AlreadyExists,
    ClusterVersion,
    JobInfo,
    JobRequest,
    LogChunk,
    LogPart,
    Package,
    SubmitAccepted,
    SubmitOrigin,
    SubmitOutcome,
)
from airflow_provider.core.job import JobStatus

__all__ = [
    "MAX_PACKAGE_BYTES",
    "AlreadyExists",
    "AsyncJobs",
    "AsyncJobsClient",
    "ClusterAddress",
    "ClusterCredentials",
    "ClusterVersion",
    "InsecureDashboardWarning",
    "JobInfo",
    "JobRequest",
    "JobStatus",
    "JobsClient",
    "LogChunk",
    "LogPart",
    "LogReader",
    "Package",
    "SubmitAccepted",
    "SubmitLimits",
    "SubmitOrigin",
    "SubmitOutcome",
    "SyncJobsClient",
    "TailLimits",
    "Timeouts",
    "last_chunk",
    "package_directory",
    "package_files",
]
