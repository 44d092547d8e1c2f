//! Reads what an executor reports, and never waits for anything but the stream.

use std::sync::Arc;

use rollout::text::shown;
use rollout_wire::from_wire::WireError;
use rollout_wire::{HELD_ATTEMPTS_MAX, v1};
use tokio::sync::{Semaphore, mpsc, watch};
use tonic::{Code, Streaming};

use super::Links;
use super::close::{Close, CloseCode};
use super::hello::{Reporter, measured};
use super::session::STATUS_CHARS_MAX;
use super::waiting::{self, REPORT_BYTES_MAX};
use crate::inbox::{Input, Reported, SessionId};

/// Reports of work that wait for the driver. An executor has at most three unanswered reports per
/// attempt it holds.
pub(super) const WORK_REPORTS_MAX: usize = 3 * HELD_ATTEMPTS_MAX;
/// Lists of what the executor holds that wait for the driver. One that comes meanwhile is left out: the
/// next one says more.
const HELD_LISTS_MAX: usize = 1;

pub(super) struct Reader<'a> {
    links: &'a Links,
    session: SessionId,
    reporter: &'a Reporter,
    work: mpsc::Sender<Input>,
    /// Whose turn it is to wait for the driver, with a list.
    lists: Arc<Semaphore>,
    report_bytes: Arc<Semaphore>,
    acknowledge: watch::Sender<Option<u64>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        links: &'a Links,
        session: SessionId,
        reporter: &'a Reporter,
        work: mpsc::Sender<Input>,
        report_bytes: Arc<Semaphore>,
        acknowledge: watch::Sender<Option<u64>>,
    ) -> Self {
        let lists = Arc::new(Semaphore::new(HELD_LISTS_MAX));
        Self { links, session, reporter, work, lists, report_bytes, acknowledge }
    }

    /// Until the stream ends or says what cannot be.
    pub(super) async fn read(self, mut incoming: Streaming<v1::ReportBatch>, rest: Vec<v1::Report>) -> Close {
        let mut reports = rest;
        loop {
            for report in reports {
                if let Err(close) = self.report(report) {
                    return close;
                }
            }
            reports = match incoming.message().await {
                Ok(Some(batch)) => batch.reports,
                Ok(None) => return Close::new(CloseCode::Gone, "the executor closed the stream"),
                Err(status) => {
                    // What cannot be decoded cannot be sent again either.
                    let unreadable = matches!(status.code(), Code::OutOfRange | Code::Internal);
                    let code = if unreadable { CloseCode::BadReport } else { CloseCode::Gone };
                    return Close::new(code, shown(status.message(), STATUS_CHARS_MAX));
                }
            };
        }
    }

    fn report(&self, report: v1::Report) -> Result<(), Close> {
        use v1::report::Kind;
        let bad = |problem: WireError| Close::new(CloseCode::BadReport, problem.to_string());
        let event = match report.kind {
            Some(Kind::Heartbeat(beat)) => {
                self.links.beat(&self.reporter.node, self.session, measured(&beat));
                self.acknowledge.send_replace(Some(beat.sequence));
                return Ok(());
            }
            Some(Kind::LogData(data)) => {
                return self.links.log_data(&self.reporter.node, self.session, data);
            }
            Some(Kind::Started(message)) => self.reporter.started(&message).map_err(bad)?,
            Some(Kind::Ended(message)) => self.reporter.ended(&message).map_err(bad)?,
            Some(Kind::Refused(message)) => self.reporter.refused(&message).map_err(bad)?,
            Some(Kind::Checkpoint(message)) => self.reporter.checkpoint_taken(&message).map_err(bad)?,
            Some(Kind::Identified(message)) => self.reporter.identified(&message).map_err(bad)?,
            Some(Kind::Held(message)) => {
                let Ok(turn) = self.lists.clone().try_acquire_owned() else {
                    tracing::debug!(node = %self.reporter.node, HELD_LISTS_MAX, "left out a list: another waits");
                    return Ok(());
                };
                let node = self.reporter.node.clone();
                let event = self.reporter.held(&message).map_err(bad)?;
                return self.wait(Input::Held { node, event, turn });
            }
            Some(Kind::Hello(_)) => return Err(Close::new(CloseCode::BadReport, "a second hello")),
            None => return Err(Close::new(CloseCode::BadReport, "an unknown report")),
        };
        // Weighed as it was cut and checked: what is left of it is what waits.
        let bytes = waiting::room(&self.report_bytes, &event)
            .ok_or_else(|| too_many(&format!("{REPORT_BYTES_MAX} bytes of reports wait")))?;
        self.wait(Input::Reported(Reported { event, bytes }))
    }

    /// Hands it to those that wait for the driver.
    fn wait(&self, input: Input) -> Result<(), Close> {
        self.work.try_send(input).map_err(|_| too_many(&format!("{WORK_REPORTS_MAX} reports wait")))
    }
}

fn too_many(what: &str) -> Close {
    Close::new(
        CloseCode::TooManyReports,
        format!("{what}, the most of one node; attach anew and tell them again"),
    )
}
