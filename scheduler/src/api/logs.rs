//! `Logs`: captured output, from the blob store once an attempt has ended, from its node while it
//! runs.

use std::time::Duration;

use bytes::Bytes;
use rollout::RolloutId;
use rollout::outcome::Captured;
use rollout_wire::{to_wire, v1};

use super::outlet::{Gone, Outlet};
use super::rollouts::step_index;
use super::{ApiCode, ApiError, JobsService, Stream, blob};
use crate::link::ReadLogRefused;
use crate::store::AttemptRow;

/// Bytes of one chunk.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Chunks that wait for a slow reader.
const CHUNKS_MAX: usize = 4;
/// How often a followed log is asked for more.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);
/// How long a node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
const STREAMS: [&str; 2] = ["stdout", "stderr"];

pub(super) async fn logs(
    service: &JobsService,
    request: &v1::LogsRequest,
) -> Result<Stream<v1::LogsChunk>, ApiError> {
    let not_found = || ApiError::not_found("rollout", &request.rollout);
    let rollout: RolloutId = request.rollout.parse().map_err(|_| not_found())?;
    let facts = service.jobs.get(rollout.group.job).await?.ok_or_else(not_found)?;
    let ended = service.reads.rollout(rollout).await?.ok_or_else(not_found)?.is_some();
    let step = step_index(&facts.plan, &request.step)?;
    let streams = match request.stream.as_str() {
        "" => STREAMS.to_vec(),
        name => STREAMS.into_iter().filter(|stream| *stream == name).collect(),
    };
    if streams.is_empty() {
        return Err(ApiError::bad_request("stream", "neither `stdout` nor `stderr`"));
    }
    let attempts = service.reads.attempts(facts.plan.runner(rollout, step)).await?.into_iter();
    let attempt = attempts
        .filter(|row| row.attempt.step == step)
        .filter(|row| request.attempt.is_none_or(|wanted| row.attempt.attempt == wanted))
        .max_by_key(|row| row.attempt.attempt);
    let attempt = attempt.ok_or_else(|| {
        let hint = match (request.attempt, ended) {
            (Some(_), _) => "`rollyard show` lists the attempts there are",
            (None, true) => {
                "the step was never started, and the rollout has ended; `rollyard explain` says why"
            }
            (None, false) => "the step has not been placed yet; `rollyard explain` says why",
        };
        ApiError::not_found("attempt", &format!("{}/{}", request.rollout, request.step)).hint(hint)
    })?;
    let (outlet, stream) = Outlet::open(service, CHUNKS_MAX)?;
    let reading = Reading { service: service.clone(), follow: request.follow && !service.read_only, outlet };
    service.tasks.spawn(reading.run(attempt, streams));
    Ok(stream)
}

struct Reading {
    service: JobsService,
    follow: bool,
    outlet: Outlet<v1::LogsChunk>,
}

impl Reading {
    async fn run(self, attempt: AttemptRow, streams: Vec<&'static str>) {
        let read = async {
            let mut positions: Vec<(&'static str, u64)> = streams.into_iter().map(|s| (s, 0)).collect();
            self.read(attempt, &mut positions).await
        };
        let ended = tokio::select! {
            () = self.outlet.closed() => Ok(()),
            () = self.service.stop.cancelled() => Err(ApiError::from(crate::inbox::Stopping)),
            ended = read => ended,
        };
        self.outlet.end(&self.service, ended);
    }

    async fn read(
        &self,
        mut attempt: AttemptRow,
        positions: &mut [(&'static str, u64)],
    ) -> Result<(), ApiError> {
        loop {
            if let Some(outcome) = &attempt.outcome {
                for (stream, offset) in positions {
                    let captured = if *stream == "stdout" { &outcome.stdout } else { &outcome.stderr };
                    match self.stored(stream, captured, *offset).await {
                        Ok(read) => read?,
                        Err(Gone) => return Ok(()),
                    }
                }
                return Ok(());
            }
            let mut moved = false;
            let mut gone = false;
            for (stream, offset) in positions.iter_mut() {
                let Some(data) = self.live(&attempt, stream, *offset).await? else {
                    gone = true;
                    continue;
                };
                moved |= !data.is_empty();
                *offset += data.len() as u64;
                if !data.is_empty() && self.send(stream, data).await.is_err() {
                    return Ok(());
                }
            }
            if moved {
                continue;
            }
            if !self.follow && !gone {
                return Ok(());
            }
            tokio::time::sleep(FOLLOW_INTERVAL).await;
            let rows = self.service.reads.attempts(attempt.attempt.rollout).await?;
            match rows.into_iter().find(|row| row.attempt == attempt.attempt) {
                Some(row) => attempt = row,
                // Withdrawn: it never ran.
                None => return Ok(()),
            }
            if gone && attempt.outcome.is_none() && !self.follow {
                return Err(ApiError::new(
                    ApiCode::LogUnavailable,
                    format!("attempt {} is not held by node {} now", attempt.attempt, attempt.node),
                )
                .hint("ask again when the attempt has ended, or with follow"));
            }
        }
    }

    /// The next piece from the node; none if it does not hold the attempt or is away.
    async fn live(
        &self,
        attempt: &AttemptRow,
        stream: &str,
        offset: u64,
    ) -> Result<Option<Vec<u8>>, ApiError> {
        let read = v1::ReadLog {
            request: 0,
            attempt: Some(to_wire::attempt(attempt.attempt)),
            stream: stream.to_owned(),
            offset,
            bytes_max: u32::try_from(CHUNK_BYTES_MAX).unwrap_or(u32::MAX),
        };
        let answer = match self.service.links.read_log(&attempt.node, attempt.incarnation, read) {
            Ok(answer) => answer,
            Err(ReadLogRefused::Away) => return Ok(None),
            Err(ReadLogRefused::Busy) => {
                let message = format!("too many readers of the logs of node {}", attempt.node);
                return Err(ApiError::new(ApiCode::TooManyLogReaders, message).hint("try again later"));
            }
        };
        match tokio::time::timeout(NODE_TIMEOUT, answer).await {
            Ok(Ok(data)) if !data.gone => Ok(Some(data.data)),
            Ok(Ok(_) | Err(_)) | Err(_) => Ok(None),
        }
    }

    /// The rest of a stored stream, from `offset` on.
    async fn stored(
        &self,
        stream: &str,
        captured: &Captured,
        offset: u64,
    ) -> Result<Result<(), ApiError>, Gone> {
        if let Some(sha256) = &captured.sha256
            && let Err(error) = self.copy(stream, sha256, offset).await?
        {
            return Ok(Err(error));
        }
        if captured.truncated {
            let dropped_bytes = captured.written.0.saturating_sub(captured.stored.0);
            let last = v1::LogsChunk { stream: stream.to_owned(), data: Vec::new(), dropped_bytes };
            self.outlet.send(last).await?;
        }
        Ok(Ok(()))
    }

    async fn copy(&self, stream: &str, sha256: &str, offset: u64) -> Result<Result<(), ApiError>, Gone> {
        let mut reader = match self.service.blobs.open_reader(sha256).await {
            Ok(reader) => reader,
            Err(error) => return Ok(Err(blob::failed(error))),
        };
        let mut skip = offset;
        loop {
            let mut part = match reader.next().await {
                Ok(Some(part)) => part,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(blob::failed(error))),
            };
            let skipped = usize::try_from(skip).unwrap_or(usize::MAX).min(part.len());
            skip -= skipped as u64;
            let mut part: Bytes = part.split_off(skipped);
            while !part.is_empty() {
                let chunk = part.split_to(part.len().min(CHUNK_BYTES_MAX));
                self.send(stream, chunk.to_vec()).await?;
            }
        }
    }

    async fn send(&self, stream: &str, data: Vec<u8>) -> Result<(), Gone> {
        let chunk = v1::LogsChunk { stream: stream.to_owned(), data, dropped_bytes: 0 };
        self.outlet.send(chunk).await
    }
}
