//! `schedule`, read into the plan.

use chrono_tz::Tz;

use super::diagnostic::{Diagnostic, DiagnosticCode as Code, Sink};
use super::view::View;
use crate::schedule::{Overlap, SchedulePlan};

/// None: there is no schedule, or it has an error.
pub(crate) fn read(job: &View<'_>, sink: &mut Sink) -> Option<SchedulePlan> {
    let schedule = job.object("schedule")?;
    if let Some(matrix) = job.find("matrix") {
        let message = "`schedule` beside `matrix` is not available yet: a schedule fires one job";
        let fault = Diagnostic::error(Code::NotAvailableYet, matrix.key_span, &matrix.path, message);
        sink.push(fault.expected("a spec without `matrix`, one for each of its combinations"));
        return None;
    }
    let overlap = match schedule.text("overlap") {
        None => Overlap::Skip,
        Some(text) => Overlap::ALL.into_iter().find(|overlap| overlap.as_str() == text)?,
    };
    Some(SchedulePlan {
        cron: schedule.parse("cron")?,
        timezone: schedule.text("timezone").map_or(Some(Tz::UTC), |name| name.parse().ok())?,
        enabled: schedule.text("enabled") != Some("false"),
        overlap,
        catch_up: schedule.text("catch_up") == Some("true"),
    })
}
